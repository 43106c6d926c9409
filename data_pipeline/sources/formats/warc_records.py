"""Records of a WARC file, read one at a time. After a wrong Content-Length, reading resumes at the next record."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from data_pipeline.sources.content import ChunksUntilError, read_chunks
from data_pipeline.sources.formats.html import MAX_PAGE_BYTES
from data_pipeline.sources.source import InputFile, Source
from data_pipeline.sources.unreadable import Unreadable, UnreadableRecord

MAX_RECORD_BYTES = MAX_PAGE_BYTES
"""Maximum bytes of a WARC record in memory; of a longer record only the start is read."""
MAX_HEADER_BYTES = 1 << 20
"""Maximum bytes of a record's headers, and the part that is held of an oversized record: it includes the HTTP
headers."""
LOOKAHEAD_BYTES = 64
"""Bytes examined after a record for blank lines and the start of the next record."""
MAX_REREADS = 20
"""Maximum rereads of the file. A wrong length beyond MAX_RECORD_BYTES requires reading again from the next record
found."""


def max_record_bytes(source: Source) -> int:
    return source.max_bytes or MAX_RECORD_BYTES


RECORD_START = b"WARC/"
NEXT_RECORD = re.compile(rb"\n\r?\n(?=WARC/[0-9]\.[0-9]+\r?\n)")
"""Blank line before a WARC record."""
NEWLINES = re.compile(rb"[\r\n]+")
HEADER_END = re.compile(rb"\n\r?\n")
LENGTH = re.compile(rb"^content-length:[ \t]*([0-9]{1,18})[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True)
class RawRecord:
    """Bytes of a WARC record, including headers."""

    content: bytes
    is_complete: bool = True
    """False if the record is longer than MAX_RECORD_BYTES and this is its start."""


def read_raw_records(file: InputFile) -> Iterator[RawRecord | UnreadableRecord]:
    """Yield the records of a WARC file in order, or an error for a record whose end cannot be determined.

    Raises `Unreadable` for a file that is not WARC or ends in the middle of a record.
    """
    window, rereads = _Window(read_chunks(file)), 0
    window.skip_newlines()
    if window.is_empty() and window.error:
        raise window.error
    if not window.starts_with(RECORD_START):
        raise Unreadable("not WARC", "is not a readable WARC (it does not start with `WARC/`)", "remove it")
    while not window.is_empty():
        head = window.find(HEADER_END, 0, MAX_HEADER_BYTES)
        if head is None and window.ends_within(MAX_HEADER_BYTES):
            raise window.error or _truncated_error()
        length = LENGTH.search(bytes(window.data[:head])) if head is not None else None
        size = head + int(length[1]) if head is not None and length is not None else None
        if size is not None and size > max_record_bytes(file.source):
            content, offset = bytes(window.data[:MAX_HEADER_BYTES]), window.offset
            next_start = window.skip(size)
            if window.is_end_of_record():
                yield RawRecord(content, is_complete=False)
                window.skip_newlines()
                continue
            if next_start is None and window.is_empty():
                raise window.error or _truncated_error()
            yield _wrong_length_error()
            if next_start is not None and (rereads := rereads + 1) <= MAX_REREADS:
                # The skipped bytes are no longer held in memory.
                window = _Window(read_chunks(file, offset + next_start), offset + next_start)
            elif not window.skip_to_next():
                break
            continue
        if size is not None and window.fill(size) and window.is_end_of_record(size):
            yield RawRecord(window.take(size))
            window.skip_newlines()
            continue
        if size is not None and window.ends_within(size) and window.find(NEXT_RECORD, len(RECORD_START), size) is None:
            raise window.error or _truncated_error()
        yield _wrong_length_error()
        if not window.skip_to_next():
            break
    if window.error:
        raise window.error


def _wrong_length_error() -> UnreadableRecord:
    return UnreadableRecord(
        "wrong length", "has a Content-Length that does not lead to the next record", "write the archive again"
    )


def _truncated_error() -> Unreadable:
    return Unreadable("truncated", "ends in the middle of a record", "download it again")


class _Window:
    """Buffer over a stream: the current record and the start of the next."""

    def __init__(self, source: Iterator[bytes], offset: int = 0):
        self.source = ChunksUntilError(source)
        self.data = bytearray()
        self.offset = offset
        """Offset in the WARC file of the first byte of `data`."""

    @property
    def error(self) -> Unreadable | None:
        """Reason why the WARC file ended early."""
        return self.source.error

    def fill(self, size: int) -> bool:
        """Buffer at least `size` bytes; return False if fewer are left."""
        while len(self.data) < size:
            chunk = next(self.source, None)
            if chunk is None:
                return False
            self.data += chunk
        return True

    def take(self, size: int) -> bytes:
        taken = bytes(self.data[:size])
        del self.data[:size]
        self.offset += len(taken)
        return taken

    def is_empty(self) -> bool:
        return not self.fill(1)

    def ends_within(self, size: int) -> bool:
        """Whether at most `size` bytes of the WARC file are left."""
        return not self.fill(size + 1)

    def starts_with(self, start: bytes) -> bool:
        self.fill(len(start))
        return self.data.startswith(start)

    def skip_newlines(self) -> None:
        while not self.is_empty() and (newlines := NEWLINES.match(self.data)):
            self.take(newlines.end())

    def find(self, pattern: re.Pattern[bytes], start: int, stop: int) -> int | None:
        """Return the end of the first match of a pattern that starts at or after `start` and ends before `stop`, or
        None."""
        size = min(1 << 12, stop)
        while True:
            more = self.fill(size)
            if match := pattern.search(self.data, start, stop):
                return match.end()
            if not more or size >= stop:
                return None
            start, size = max(start, size - LOOKAHEAD_BYTES), min(4 * size, stop)

    def is_end_of_record(self, size: int = 0) -> bool:
        """Whether blank lines follow at `size`, and then a record or the end."""
        self.fill(size + LOOKAHEAD_BYTES)
        following = bytes(self.data[size : size + LOOKAHEAD_BYTES])
        next_record = following.lstrip(b"\r\n")
        if not next_record and len(following) < LOOKAHEAD_BYTES:
            newlines = following.count(b"\n")
            return newlines >= 2 or (newlines == 1 and self.data[size - 1 : size] == b"\n")
        # In a truncated file, the next record may be shorter than RECORD_START.
        return (
            len(next_record) < len(following) and next_record[: len(RECORD_START)] == RECORD_START[: len(next_record)]
        )

    def skip(self, size: int) -> int | None:
        """Skip `size` bytes of the WARC file. Return the offset in them of the first apparent record, or None."""
        next_start, at = None, 0
        while at < size and not self.is_empty():
            self.fill(min(MAX_HEADER_BYTES, size - at) + LOOKAHEAD_BYTES)
            if next_start is None and (match := NEXT_RECORD.search(self.data, 0, size - at + LOOKAHEAD_BYTES)):
                next_start = at + match.end() if at + match.end() < size else None
            step = min(size - at, max(len(self.data) - LOOKAHEAD_BYTES, 1))
            self.take(step)
            at += step
        return next_start

    def skip_to_next(self) -> bool:
        """Skip to the next WARC record; return False if there is none."""
        self.take(len(RECORD_START))
        while not self.is_empty():
            self.fill(MAX_HEADER_BYTES)
            if match := NEXT_RECORD.search(self.data):
                self.take(match.end())
                return True
            self.take(max(len(self.data) - LOOKAHEAD_BYTES, 0))
            if not self.fill(LOOKAHEAD_BYTES + 1):
                return False
        return False
