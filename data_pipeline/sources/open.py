"""Access to local and remote files: the only module that opens remote files."""

from __future__ import annotations

import errno
import os
import stat
from functools import lru_cache
from typing import Any, BinaryIO

from megaptm.storage import PROTOCOLS, exists, is_remote, open_remote

SOURCE_PATH_ERRORS = (
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG),
    *(errno.EINVAL, errno.ENXIO, errno.ENODEV),
)
"""Error numbers about the path of a file, which stay the same at the next attempt. All others, such as EIO, EMFILE and
ENOSPC, are about a disk or the limits of a process, and end a build."""


def open_bytes(path: str) -> BinaryIO:
    """Open a local or remote source file for reading and seeking. Requests to a failing server are retried, except for
    files within a remote archive. Endpoint and keys of an object store come from the environment, as in s3fs."""
    if not is_remote(path):
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would block until a writer opens it
            raise OSError(errno.EINVAL, "it is no file", path)
        return open(path, "rb")
    if not is_chained(path):
        if not exists(path):  # it existed when files were listed
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return open_remote(path)
    system, inner = file_system(path)
    return system.open(inner, "rb")


def is_chained(url: str) -> bool:
    """Whether a URL names a file within another: `zip://*.txt::s3://bucket/pile.zip`. At a store, `::` is part of a
    name."""
    return "::" in url and url.partition("://")[0] not in PROTOCOLS


@lru_cache(maxsize=8)  # cached: an archive's file system closes the archive when it is garbage-collected
def file_system(url: str) -> tuple[Any, str]:
    """Return fsspec's file system of a URL, and the path in it. Raises `ValueError` if the URL alone is not enough."""
    import fsspec

    try:
        if "::" in url and not is_chained(url):
            kind = fsspec.get_filesystem_class(url.partition("://")[0])
            return kind(**kind._get_kwargs_from_urls(url)), kind._strip_protocol(url)
        return fsspec.core.url_to_fs(url)
    except (TypeError, AttributeError):  # the file system needs options that a URL cannot hold
        raise ValueError(f"a {url.partition('://')[0]}:// file system needs options besides the URL") from None
