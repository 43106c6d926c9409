"""Decompressed content of a file, as chunks or as a stream."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from typing import BinaryIO

from data_pipeline.sources.compression import (
    CHUNK_BYTES,
    HEAD_BYTES,
    check_compression,
    compression_of,
    decompress,
)
from data_pipeline.sources.open import SOURCE_PATH_ERRORS, open_bytes
from data_pipeline.sources.source import InputFile
from data_pipeline.sources.unreadable import Unreadable
from megaptm.errors import quote_value
from megaptm.storage import is_remote

EMPTY = Unreadable("empty file", "is empty", "remove it", loses_text=False)


def read_chunks(file: InputFile, start: int = 0) -> Iterator[bytes]:
    """Yield the decompressed content of a source file from byte `start`; raises `Unreadable`."""
    with open_file(file) as stream:
        kind = compression_of(file.name)
        head = stream.read(HEAD_BYTES)
        if not head:
            raise EMPTY
        check_compression(kind, head)
        stream.seek(start if kind is None else 0)
        raw = iter(lambda: stream.read(CHUNK_BYTES), b"")
        yield from raw if kind is None else _skip_bytes(_limit_size(decompress(raw, kind), file), start)


def open_file(file: InputFile) -> BinaryIO:
    """Open a source file without decompression; raise `Unreadable` if it does not exist or may not be read."""
    # A server that does not respond is not an error of the file. It ends the build instead of being counted.
    file_errors = (FileNotFoundError, PermissionError, IsADirectoryError) if is_remote(file.path) else (OSError,)
    try:
        return open_bytes(file.path)
    except file_errors as error:
        if error.errno not in (None, *SOURCE_PATH_ERRORS):
            raise
        if not is_remote(file.path) and os.path.islink(file.path) and not os.path.exists(file.path):
            problem = f"is a link to {quote_value(os.readlink(file.path))}, which does not exist"
            raise Unreadable("unreadable", problem, "correct the link, or remove it") from None
        problem = f"cannot be read ({getattr(error, 'strerror', None) or error})"
        raise Unreadable("unreadable", problem, "make it readable") from None


def _limit_size(data: Iterator[bytes], file: InputFile) -> Iterator[bytes]:
    size = 0
    for chunk in data:
        if (size := size + len(chunk)) > file.max_unpacked:
            raise expansion_error(file)
        yield chunk


def expansion_error(file: InputFile) -> Unreadable:
    problem = f"expands from {file.size:,} to more than {file.max_unpacked:,} bytes"
    return Unreadable("expands too much", problem, "decompress it, or raise `max_expansion` of its source")


def _skip_bytes(data: Iterator[bytes], start: int) -> Iterator[bytes]:
    has_data = False
    for chunk in data:
        has_data = True
        if start < len(chunk):
            yield chunk[start:] if start else chunk
        start = max(0, start - len(chunk))
    if not has_data:
        raise EMPTY


class ChunksUntilError:
    """Iterator over the chunks of a source file that ends where they cannot be read, so that a reader can use the
    earlier ones; see `error`."""

    def __init__(self, data: Iterator[bytes]):
        self.data = data
        self.error: Unreadable | None = None
        """Reason why the file could not be read to its end."""

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self.data)
        except Unreadable as error:
            self.error = error
            raise StopIteration from None


class ChunkStream(io.RawIOBase):
    """Raw stream over chunks of a source file, for libraries that read from a stream."""

    def __init__(self, data: Iterator[bytes]):
        self.data = data
        self.pending = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def, override]
        while not self.pending:
            chunk = next(self.data, None)
            if chunk is None:
                return 0
            self.pending = memoryview(chunk)
        count = min(len(buffer), len(self.pending))
        buffer[:count] = self.pending[:count]
        self.pending = self.pending[count:]
        return count
