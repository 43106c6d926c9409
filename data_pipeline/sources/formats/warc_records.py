"""Records of a WARC file, read one at a time. After a wrong Content-Length, reading resumes at the next record."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from data_pipeline.sources.bad import BadRecord, Unreadable
from data_pipeline.sources.content import UpToFault, chunks
from data_pipeline.sources.formats.html import LONGEST_PAGE
from data_pipeline.sources.source import InputFile, Source

LONGEST_RECORD = LONGEST_PAGE
"""Bytes. Only the start of a longer record is held in memory."""
LONGEST_HEAD = 1 << 20
"""Maximum bytes of a record's headers, and the part that is held of an oversized record: it includes the HTTP
headers."""
GAP = 64
"""Bytes examined after a record for blank lines and the start of the next record."""
REREADS = 20
"""Maximum rereads of the file. A wrong length beyond LONGEST_RECORD requires reading again from the next record
found."""


def longest_record(source: Source) -> int:
    return source.max_bytes or LONGEST_RECORD


BEGIN = b"WARC/"
NEXT = re.compile(rb"\n\r?\n(?=WARC/[0-9]\.[0-9]+\r?\n)")
"""Blank line before a record."""
HEAD_END = re.compile(rb"\n\r?\n")
LENGTH = re.compile(rb"^content-length:[ \t]*([0-9]{1,18})[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True)
class RawRecord:
    """Bytes of a record, including headers."""

    content: bytes
    whole: bool = True
    """False if the record is longer than LONGEST_RECORD and this is its start."""


def raw_records(file: InputFile) -> Iterator[RawRecord | BadRecord]:
    """Yield records in order, or an error for a record whose end cannot be determined.

    Raises `Unreadable` for a file that is not WARC or ends in the middle of a record.
    """
    window, rereads = _Window(chunks(file)), 0
    window.skip_newlines()
    if window.is_empty() and window.fault:
        raise window.fault
    if not window.begins_with(BEGIN):
        raise Unreadable("not WARC", "is not a WARC that can be read (it does not begin with `WARC/`)", "remove it")
    while not window.is_empty():
        head = window.find(HEAD_END, 0, LONGEST_HEAD)
        if head is None and window.is_over(LONGEST_HEAD):
            raise window.fault or _truncated()
        length = LENGTH.search(bytes(window.data[:head])) if head is not None else None
        size = head + int(length[1]) if head is not None and length is not None else None
        if size is not None and size > longest_record(file.source):
            content, begin = bytes(window.data[:LONGEST_HEAD]), window.offset
            seen = window.skip(size)
            if window.is_end_of_record():
                yield RawRecord(content, whole=False)
                window.skip_newlines()
                continue
            if seen is None and window.is_empty():
                raise window.fault or _truncated()
            yield _wrong_length()
            if seen is not None and (rereads := rereads + 1) <= REREADS:
                # The skipped bytes are no longer held in memory.
                window = _Window(chunks(file, begin + seen), begin + seen)
            elif not window.skip_to_next():
                break
            continue
        if size is not None and window.fill(size) and window.is_end_of_record(size):
            yield RawRecord(window.take(size))
            window.skip_newlines()
            continue
        if size is not None and window.is_over(size) and window.find(NEXT, len(BEGIN), size) is None:
            raise window.fault or _truncated()
        yield _wrong_length()
        if not window.skip_to_next():
            break
    if window.fault:
        raise window.fault


def _wrong_length() -> BadRecord:
    return BadRecord("wrong length", "has no Content-Length that leads to the next record", "write the archive again")


def _truncated() -> Unreadable:
    return Unreadable("truncated", "ends in the middle of a record", "fetch it again")


class _Window:
    """Buffer over a stream: the current record and the start of the next."""

    def __init__(self, source: Iterator[bytes], offset: int = 0):
        self.source = UpToFault(source)
        self.data = bytearray()
        self.offset = offset
        """Offset of the first byte of `data`."""

    @property
    def fault(self) -> Unreadable | None:
        """Reason for an early end of the stream."""
        return self.source.fault

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

    def is_over(self, size: int) -> bool:
        """Whether at most `size` bytes are left."""
        return not self.fill(size + 1)

    def begins_with(self, start: bytes) -> bool:
        self.fill(len(start))
        return self.data.startswith(start)

    def skip_newlines(self) -> None:
        while not self.is_empty() and self.data[0] in b"\r\n":
            self.take(len(self.data) - len(self.data.lstrip(b"\r\n")))

    def find(self, pattern: re.Pattern[bytes], start: int, stop: int) -> int | None:
        """Return the end of the first match that starts at or after `start` and ends before `stop`, or None."""
        size = min(1 << 12, stop)
        while True:
            more = self.fill(size)
            if match := pattern.search(self.data, start, stop):
                return match.end()
            if not more or size >= stop:
                return None
            start, size = max(start, size - GAP), min(4 * size, stop)

    def is_end_of_record(self, size: int = 0) -> bool:
        """Whether blank lines follow at `size`, and then a record or the end."""
        self.fill(size + GAP)
        rest = bytes(self.data[size : size + GAP])
        behind = rest.lstrip(b"\r\n")
        if not behind and len(rest) < GAP:
            return rest.count(b"\n") >= 2 or (rest.count(b"\n") == 1 and self.data[size - 1 : size] == b"\n")
        # Of a file that is cut off, the next record may be less than its first word.
        return len(behind) < len(rest) and behind[: len(BEGIN)] == BEGIN[: len(behind)]

    def skip(self, size: int) -> int | None:
        """Skip `size` bytes. Return the offset in them of the first apparent record, or None."""
        seen, at = None, 0
        while at < size and not self.is_empty():
            self.fill(min(LONGEST_HEAD, size - at) + GAP)
            if seen is None and (match := NEXT.search(self.data, 0, size - at + GAP)):
                seen = at + match.end() if at + match.end() < size else None
            step = min(size - at, max(len(self.data) - GAP, 1))
            self.take(step)
            at += step
        return seen

    def skip_to_next(self) -> bool:
        """Skip to the next record; return False if there is none."""
        self.take(len(BEGIN))
        while not self.is_empty():
            self.fill(LONGEST_HEAD)
            if match := NEXT.search(self.data):
                self.take(match.end())
                return True
            self.take(max(len(self.data) - GAP, 0))
            if not self.fill(GAP + 1):
                return False
        return False
