"""Lines of a span, each with the offset of its first byte.

A span contains the lines whose first byte is in the span. So the spans of a file together contain each line once,
wherever the file is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

from data_pipeline.sources.bad import BadRecord
from data_pipeline.sources.compression import compression_of
from data_pipeline.sources.content import chunks
from data_pipeline.sources.encodings import Encoding, encoding_of_records
from data_pipeline.sources.source import InputFile, Source, Span

LONGEST_LINE = 256 << 20
"""Bytes. A longer line is not text, and the memory of a worker must not depend on it."""
BOM = b"\xef\xbb\xbf"

Line = tuple[int, bytes | bytearray | None]
"""Offset, and the line without its newline. None for a line longer than LONGEST_LINE."""


def longest_line(source: Source) -> int:
    return source.max_bytes or LONGEST_LINE


def too_long(source: Source) -> BadRecord:
    what = f"is longer than {longest_line(source):,} bytes"
    return BadRecord("line too long", what, "break it up, or raise `max_bytes` of its source")


def lines_of(span: Span, encoding: Encoding) -> Iterator[Line]:
    """Yield the lines that start in a span; raises `Unreadable`."""
    start, end = span.start, span.end
    if not can_be_cut(span.file, encoding):
        if start:
            return  # the first span contains all lines
        end = float("inf")
    for offset, line in _lines_after(span.file, encoding, start, end):
        if offset >= end:
            return
        yield offset, line


def count_lines(file: InputFile) -> Callable[[int], int]:
    """Return a function from byte offset to line number (from 1). Each call reads the file up to the offset."""

    def line_at(offset: int) -> int:
        number = 1
        for chunk in encoding_of_records(file).plain_lines(chunks(file)):
            number += chunk.count(b"\n", 0, offset)
            if (offset := offset - len(chunk)) <= 0:
                break
        return number

    return line_at


def can_be_cut(file: InputFile, encoding: Encoding) -> bool:
    """Whether reading can start mid-file. If not, the first span contains the whole file."""
    return compression_of(file.name) is None and encoding.has_plain_lines


def _lines_after(file: InputFile, encoding: Encoding, start: int, end: float) -> Iterator[Line]:
    """Yield the lines whose first byte is at or after `start`, at least up to `end`."""
    if not start:
        return _lines(encoding.plain_lines(chunks(file)), 0, longest_line(file.source))
    data, at = chunks(file, start - 1), start - 1
    for chunk in data:
        found = chunk.find(b"\n") + 1
        if found:
            return _lines(chain((chunk[found:],), data), at + found, longest_line(file.source))
        at += len(chunk)
        if at >= end:
            break
    return iter(())


def _lines(data: Iterator[bytes], offset: int, longest: int) -> Iterator[Line]:
    """Split chunks into lines. A line that is too long is measured but not held in memory."""
    held, lost = bytearray(), 0
    for chunk in data:
        first, *rest = chunk.split(b"\n")
        held += first
        if lost or len(held) > longest:
            lost, held = lost + len(held), bytearray()
        if not rest:
            continue
        last = rest.pop()
        yield offset, None if lost else _without_mark(held, offset)
        offset += lost + len(held) + 1
        for line in rest:
            yield offset, line
            offset += len(line) + 1
        held, lost = bytearray(last), 0
    if held or lost:
        yield offset, None if lost else _without_mark(held, offset)


def _without_mark(line: bytearray, offset: int) -> bytearray:
    return line.removeprefix(BOM) if not offset and line.startswith(BOM) else line
