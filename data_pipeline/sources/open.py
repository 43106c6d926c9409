"""The one place that opens what is not on this machine."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, BinaryIO


def is_remote(path: str) -> bool:
    return "://" in path or "::" in path


def open_bytes(path: str) -> BinaryIO:
    """A file to read and seek in. Address and keys of a store come from the environment, as s3fs takes them."""
    if not is_remote(path):
        return open(path, "rb")
    system, inner = file_system(path)
    return system.open(inner, "rb")


@lru_cache(maxsize=8)  # kept: an archive's file system closes the archive when it goes
def file_system(url: str) -> tuple[Any, str]:
    """fsspec's file system of a URL, and the path in it."""
    import fsspec

    return fsspec.core.url_to_fs(url)
