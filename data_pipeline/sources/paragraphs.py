"""Paragraphs of a span, separated by blank lines.

As in lines.py, a span contains the paragraphs that start in it, wherever the file is cut. Such files have short lines,
often one sentence each, so many lines are processed at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

from data_pipeline.sources.compression import CHUNK_BYTES
from data_pipeline.sources.content import open_file, read_chunks
from data_pipeline.sources.encodings import Encoding
from data_pipeline.sources.lines import BOM, can_be_cut, max_line_bytes
from data_pipeline.sources.source import InputFile, Span

BLANK_LINES = re.compile(rb"(?:[ \t\r\v\f]*\n)+")
LINE_END_AND_BLANK_LINES = re.compile(rb"\n(?:[ \t\r\v\f]*\n)+")

ParagraphBlock = tuple[int, int, bytes | None]
"""Complete lines of a paragraph, with the offset of the paragraph and of these lines. None for a line longer than
MAX_LINE_BYTES."""


def read_paragraphs(span: Span, encoding: Encoding) -> Iterator[tuple[int, Iterator[bytes | None]]]:
    """Yield the paragraphs that start in a span, as offset and blocks of lines; raises `Unreadable`."""
    start, end = span.start, span.end
    if not can_be_cut(span.file, encoding):
        if start:
            return
        end = float("inf")
    read_start = _before_whitespace(span.file, start)
    data = encoding.plain_lines(read_chunks(span.file, read_start))
    blocks = _paragraph_blocks(_complete_lines(data, read_start, max_line_bytes(span.file.source)))
    for offset, pieces in groupby(blocks, itemgetter(0)):
        if offset >= end:
            return
        if offset >= start:
            yield offset, (content for _, _, content in pieces)
        elif any(at >= end for _, at, _ in pieces):
            return  # the paragraph starts before the span and ends after it


def _paragraph_blocks(blocks: Iterator[tuple[int, bytes | None]]) -> Iterator[ParagraphBlock]:
    paragraph: int | None = None
    for at, block in blocks:
        if block is None:
            paragraph = at if paragraph is None else paragraph
            yield paragraph, at, None
            continue
        position = len(BOM) if not at and block.startswith(BOM) else 0
        if blank := BLANK_LINES.match(block, position):
            paragraph, position = None, blank.end()
        while position < len(block):
            gap = LINE_END_AND_BLANK_LINES.search(block, position)
            stop = gap.start() + 1 if gap else len(block)
            paragraph = at + position if paragraph is None else paragraph
            yield paragraph, at + position, block[position:stop]
            position = stop
            if gap:
                paragraph, position = None, gap.end()


def _complete_lines(data: Iterator[bytes], offset: int, longest: int) -> Iterator[tuple[int, bytes | None]]:
    """Yield offset and block of complete lines; None instead of a block for a line that is too long."""
    held, skipped_bytes = bytearray(), 0
    for chunk in data:
        first, last = chunk.find(b"\n") + 1, chunk.rfind(b"\n") + 1
        held += chunk[:first] if first else chunk
        if skipped_bytes or len(held) > longest + bool(first):
            skipped_bytes, held = skipped_bytes + len(held), bytearray()
        if not first:
            continue
        if skipped_bytes:
            yield offset, None
        block = bytes(held) + chunk[first:last]
        if block:
            yield offset + skipped_bytes, block
        offset, held, skipped_bytes = offset + skipped_bytes + len(block), bytearray(chunk[last:]), 0
    if held.strip() or skipped_bytes:
        yield offset, None if skipped_bytes else bytes(held)


def _before_whitespace(file: InputFile, start: int) -> int:
    """Return the offset of the last byte before `start` that is not white space, or a later offset of a line after a
    blank one."""
    if not start:
        return 0
    with open_file(file) as stream:
        while start:
            begin = max(0, start - CHUNK_BYTES)
            stream.seek(begin)
            space = stream.read(start - begin)
            block = space.rstrip()
            if not block and space.count(b"\n") > 1:  # else each span of a blank file would read all before it
                return begin + space.rfind(b"\n") + 1
            start = begin + len(block)
            if block:
                break
    return start - 1 if start > len(BOM) else 0  # a byte order mark is not text
