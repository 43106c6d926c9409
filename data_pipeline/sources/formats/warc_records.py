"""The records of a WARC, one at a time: found again behind one whose Content-Length is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from data_pipeline.sources.bad import BadRecord, Unreadable
from data_pipeline.sources.content import chunks
from data_pipeline.sources.formats.html import LONGEST_PAGE
from data_pipeline.sources.source import InputFile, Source

LONGEST_RECORD = LONGEST_PAGE
"""Bytes of a record that is held; of a longer one only the beginning is."""
LONGEST_HEAD = 1 << 20
"""Bytes of a record's headers, and what is held of a record that is too long: its HTTP headers are there."""
GAP = 64
"""Bytes looked at behind a record: blank lines, then the next one."""
REREADS = 20
"""A wrong length beyond LONGEST_RECORD has the file read again, from where a record was seen."""


def longest_record(source: Source) -> int:
    return source.max_bytes or LONGEST_RECORD


BEGIN = b"WARC/"
NEXT = re.compile(rb"\n\r?\n(?=WARC/[0-9]\.[0-9]+\r?\n)")
"""What stands before a record."""
HEAD_END = re.compile(rb"\n\r?\n")
LENGTH = re.compile(rb"^content-length:[ \t]*([0-9]{1,18})[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True)
class RawRecord:
    """The bytes of a record, headers included."""

    content: bytes
    whole: bool = True
    """False: it is longer than LONGEST_RECORD, and this is its beginning."""


def raw_records(file: InputFile) -> Iterator[RawRecord | BadRecord]:
    """Records in order, and an error in the place of each that cannot be told from what follows it.

    Raises `Unreadable` for what is no WARC, and where the file ends in the middle of a record.
    """
    window, rereads = _Window(chunks(file)), 0
    window.skip_newlines()
    if not window.begins_with(BEGIN):
        raise Unreadable("not WARC", "is not a WARC that can be read (it does not begin with `WARC/`)", "remove it")
    while not window.is_empty():
        head = window.find(HEAD_END, 0, LONGEST_HEAD)
        if head is None and window.is_over(LONGEST_HEAD):
            raise _truncated()
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
                raise _truncated()
            yield _wrong_length()
            if seen is not None and (rereads := rereads + 1) <= REREADS:
                # What was passed over is not held any more.
                window = _Window(chunks(file, begin + seen), begin + seen)
            elif not window.skip_to_next():
                return
            continue
        if size is not None and window.fill(size) and window.is_end_of_record(size):
            yield RawRecord(window.take(size))
            window.skip_newlines()
            continue
        if size is not None and window.is_over(size) and window.find(NEXT, len(BEGIN), size) is None:
            raise _truncated()
        yield _wrong_length()
        if not window.skip_to_next():
            return


def _wrong_length() -> BadRecord:
    return BadRecord("wrong length", "has no Content-Length that leads to the next record", "write the archive again")


def _truncated() -> Unreadable:
    return Unreadable("truncated", "ends in the middle of a record", "fetch it again")


class _Window:
    """What is held of a stream: a record, and the beginning of the next."""

    def __init__(self, source: Iterator[bytes], offset: int = 0):
        self.source = source
        self.data = bytearray()
        self.offset = offset
        """Of its first byte."""

    def fill(self, size: int) -> bool:
        """Hold this many bytes; False if there are fewer."""
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
        """Whether the stream ends with this many bytes, or before."""
        return not self.fill(size + 1)

    def begins_with(self, start: bytes) -> bool:
        self.fill(len(start))
        return self.data.startswith(start)

    def skip_newlines(self) -> None:
        while not self.is_empty() and self.data[0] in b"\r\n":
            self.take(len(self.data) - len(self.data.lstrip(b"\r\n")))

    def find(self, pattern: re.Pattern[bytes], start: int, stop: int) -> int | None:
        """Where the first match behind `start` ends that ends before `stop`."""
        size = min(1 << 12, stop)
        while True:
            more = self.fill(size)
            if match := pattern.search(self.data, start, stop):
                return match.end()
            if not more or size >= stop:
                return None
            start, size = max(start, size - GAP), min(4 * size, stop)

    def is_end_of_record(self, size: int = 0) -> bool:
        """Whether blank lines follow after this many bytes, and then a record or nothing."""
        self.fill(size + GAP)
        rest = bytes(self.data[size : size + GAP])
        behind = rest.lstrip(b"\r\n")
        if not behind and len(rest) < GAP:
            return rest.count(b"\n") >= 2 or (rest.count(b"\n") == 1 and self.data[size - 1 : size] == b"\n")
        return behind.startswith(BEGIN) and len(behind) < len(rest)

    def skip(self, size: int) -> int | None:
        """Pass over so many bytes; returns where in them the first record begins, if any seems to."""
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
        """Pass over what stands before the next record; False if there is none."""
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
