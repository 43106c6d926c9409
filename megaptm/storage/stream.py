"""A file on an object store to read and seek in, a range at a time: a connection that breaks costs one range."""

from __future__ import annotations

import io
from typing import BinaryIO

from megaptm.storage.remote import Remote
from megaptm.storage.retry import RetryPolicy

RANGE = 4 << 20
"""Bytes asked for at once: small enough to wait for, large enough to keep a connection busy."""


def open_remote(url: str, retry: RetryPolicy | None = None) -> BinaryIO:
    """The bytes at a URL; a read that fails is made again."""
    return io.BufferedReader(_Ranges(Remote(url, retry or RetryPolicy())), buffer_size=RANGE)


class _Ranges(io.RawIOBase):
    def __init__(self, remote: Remote):
        self._remote = remote
        self._size = remote.size()
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence])
        return self._at

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def, override]  # any writable buffer
        stop = min(self._size, self._at + len(buffer))
        if stop <= self._at:
            return 0
        content = self._remote.range(self._at, stop)
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)
