"""Lines of a span, each with the offset of its first byte.

A span contains the lines whose first byte is in the span. So the spans of a file together contain each line once,
wherever the file is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

from data_pipeline.sources.compression import compression_of
from data_pipeline.sources.content import read_chunks
from data_pipeline.sources.encodings import Encoding, detect_record_encoding
from data_pipeline.sources.source import InputFile, Source, Span
from data_pipeline.sources.unreadable import UnreadableRecord

MAX_LINE_BYTES = 256 << 20
"""Maximum bytes of a line. A longer line is not text, and would need too much memory of a worker."""
BOM = b"\xef\xbb\xbf"

Line = tuple[int, bytes | bytearray | None]
"""Line of a source file without its newline, with its offset. None for a line longer than MAX_LINE_BYTES."""


def max_line_bytes(source: Source) -> int:
    return source.max_bytes or MAX_LINE_BYTES


def line_too_long_error(source: Source) -> UnreadableRecord:
    problem = f"is longer than {max_line_bytes(source):,} bytes"
    return UnreadableRecord("line too long", problem, "split it, or raise `max_bytes` of its source")


def read_lines(span: Span, encoding: Encoding) -> Iterator[Line]:
    """Yield the lines of a source file that start in a span; raises `Unreadable`."""
    start, end = span.start, span.end
    if not can_be_cut(span.file, encoding):
        if start:
            return  # the first span contains all lines
        end = float("inf")
    for offset, line in _lines_after(span.file, encoding, start, end):
        if offset >= end:
            return
        yield offset, line


def line_counter(file: InputFile) -> Callable[[int], int]:
    """Return a function from byte offset in a source file to line number (from 1). Each call reads the file up to the
    offset."""

    def line_at(offset: int) -> int:
        number = 1
        for chunk in detect_record_encoding(file).plain_lines(read_chunks(file)):
            number += chunk.count(b"\n", 0, offset)
            if (offset := offset - len(chunk)) <= 0:
                break
        return number

    return line_at


def can_be_cut(file: InputFile, encoding: Encoding) -> bool:
    """Whether reading a file of lines can start in its middle. If not, the first span contains the whole file."""
    return compression_of(file.name) is None and encoding.has_plain_lines


def _lines_after(file: InputFile, encoding: Encoding, start: int, end: float) -> Iterator[Line]:
    """Yield the lines whose first byte is at or after `start`, at least up to `end`."""
    if not start:
        return _split_lines(encoding.plain_lines(read_chunks(file)), 0, max_line_bytes(file.source))
    data, at = read_chunks(file, start - 1), start - 1
    for chunk in data:
        line_start = chunk.find(b"\n") + 1
        if line_start:
            return _split_lines(chain((chunk[line_start:],), data), at + line_start, max_line_bytes(file.source))
        at += len(chunk)
        if at >= end:
            break
    return iter(())


def _split_lines(data: Iterator[bytes], offset: int, longest: int) -> Iterator[Line]:
    """Split chunks of a source file into lines. A line that is too long is measured but not held in memory."""
    held, skipped_bytes = bytearray(), 0
    for chunk in data:
        first, *complete = chunk.split(b"\n")
        held += first
        if skipped_bytes or len(held) > longest:
            skipped_bytes, held = skipped_bytes + len(held), bytearray()
        if not complete:
            continue
        last = complete.pop()
        yield offset, None if skipped_bytes else _without_byte_order_mark(held, offset)
        offset += skipped_bytes + len(held) + 1
        for line in complete:
            yield offset, line
            offset += len(line) + 1
        held, skipped_bytes = bytearray(last), 0
    if held or skipped_bytes:
        yield offset, None if skipped_bytes else _without_byte_order_mark(held, offset)


def _without_byte_order_mark(line: bytearray, offset: int) -> bytearray:
    return line.removeprefix(BOM) if not offset and line.startswith(BOM) else line
