"""The one place that opens what is not on this machine."""

from __future__ import annotations

import errno
import os
import stat
from functools import lru_cache
from typing import Any, BinaryIO

from megaptm.storage import exists, is_remote, open_remote


def open_bytes(path: str) -> BinaryIO:
    """A file to read and seek in; a server that fails is asked again with patience, but not about a file within an
    archive. Address and keys of a store come from the environment, as s3fs takes them."""
    if not is_remote(path):
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe waits for its writer
            raise OSError(errno.EINVAL, "it is no file", path)
        return open(path, "rb")
    if "::" not in path:
        if not exists(path):  # it was there when files were listed
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return open_remote(path)
    system, inner = file_system(path)
    return system.open(inner, "rb")


@lru_cache(maxsize=8)  # kept: an archive's file system closes the archive when it goes
def file_system(url: str) -> tuple[Any, str]:
    """fsspec's file system of a URL, and the path in it; a `ValueError` of one that a URL alone does not name."""
    import fsspec

    try:
        return fsspec.core.url_to_fs(url)
    except (TypeError, AttributeError):  # it asks for options that nobody gives
        raise ValueError(f"a place of {url.partition('://')[0]}:// needs more than an address") from None
