"""Seekable stream over a file on an object store, read in ranges, so that a broken connection costs only one range."""

from __future__ import annotations

import io
from typing import BinaryIO

from megaptm.storage.remote import RemoteFile
from megaptm.storage.retry import RetryPolicy

RANGE_BYTES = 4 << 20
"""Bytes per request for a range of a remote file: small enough for low latency, large enough for throughput."""


def open_remote(url: str, retry: RetryPolicy | None = None) -> BinaryIO:
    """Open a remote file for reading. Failed reads are retried."""
    return io.BufferedReader(_Ranges(RemoteFile(url, retry or RetryPolicy())), buffer_size=RANGE_BYTES)


class _Ranges(io.RawIOBase):
    def __init__(self, remote: RemoteFile):
        self._remote = remote
        self._size = remote.size()
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence])
        return self._position

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def, override]  # any writable buffer
        stop = min(self._size, self._position + len(buffer))
        if stop <= self._position:
            return 0
        content = self._remote.read_range(self._position, stop)
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)
