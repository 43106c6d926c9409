"""Decompressed content of a file, as chunks or as a stream."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from typing import BinaryIO

from data_pipeline.sources.bad import Unreadable
from data_pipeline.sources.compression import (
    CHUNK_BYTES,
    HEAD_BYTES,
    check_compression,
    compression_of,
    decompress,
)
from data_pipeline.sources.open import open_bytes
from data_pipeline.sources.source import InputFile
from megaptm.errors import shown
from megaptm.storage import is_remote

EMPTY = Unreadable("empty file", "is empty", "remove it")


def chunks(file: InputFile, start: int = 0) -> Iterator[bytes]:
    """Yield decompressed content from byte `start`; raises `Unreadable`."""
    with open_file(file) as stream:
        kind = compression_of(file.name)
        head = stream.read(HEAD_BYTES)
        if not head:
            raise EMPTY
        check_compression(kind, head)
        stream.seek(start if kind is None else 0)
        raw = iter(lambda: stream.read(CHUNK_BYTES), b"")
        yield from raw if kind is None else _after(_bounded(decompress(raw, kind), file), start)


def open_file(file: InputFile) -> BinaryIO:
    """Open a file without decompression; raise `Unreadable` if it does not exist or may not be read."""
    # A server that does not respond is not an error of the file. It ends the build instead of being counted.
    faults = (FileNotFoundError, PermissionError, IsADirectoryError) if is_remote(file.path) else (OSError,)
    try:
        return open_bytes(file.path)
    except faults as error:
        if not is_remote(file.path) and os.path.islink(file.path) and not os.path.exists(file.path):
            what = f"is a link to {shown(os.readlink(file.path))}, where nothing is"
            raise Unreadable("unreadable", what, "correct the link, or remove it") from None
        what = f"cannot be read ({getattr(error, 'strerror', None) or error})"
        raise Unreadable("unreadable", what, "make it readable") from None


def _bounded(data: Iterator[bytes], file: InputFile) -> Iterator[bytes]:
    size = 0
    for chunk in data:
        if (size := size + len(chunk)) > file.max_unpacked:
            raise unpacks_to_too_much(file)
        yield chunk


def unpacks_to_too_much(file: InputFile) -> Unreadable:
    what = f"unpacks to more than {file.max_unpacked:,} bytes, and has {file.size:,}"
    return Unreadable("unpacks to too much", what, "unpack it, or raise `max_expansion` of its source")


def _after(data: Iterator[bytes], start: int) -> Iterator[bytes]:
    found = False
    for chunk in data:
        found = True
        if start < len(chunk):
            yield chunk[start:] if start else chunk
        start = max(0, start - len(chunk))
    if not found:
        raise EMPTY


class UpToFault:
    """Iterator that ends where its chunks cannot be read, so that a reader can use what it holds; then see `fault`."""

    def __init__(self, data: Iterator[bytes]):
        self.data = data
        self.fault: Unreadable | None = None
        """Reason for an early end."""

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self.data)
        except Unreadable as error:
            self.fault = error
            raise StopIteration from None


class Stream(io.RawIOBase):
    """Raw stream over chunks, for libraries that read from a stream."""

    def __init__(self, data: Iterator[bytes]):
        self.data = data
        self.rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def, override]
        while not self.rest:
            chunk = next(self.data, None)
            if chunk is None:
                return 0
            self.rest = memoryview(chunk)
        count = min(len(buffer), len(self.rest))
        buffer[:count] = self.rest[:count]
        self.rest = self.rest[count:]
        return count
