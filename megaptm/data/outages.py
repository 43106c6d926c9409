"""Failures of a disk or file server while a corpus is read. They are not about the content, so reading is repeated."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from megaptm.storage.retry import RetryPolicy, retry_call

T = TypeVar("T")

RETRY = RetryPolicy()
OUTAGE_ERRORS = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENOTCONN)


def retry_outages(read: Callable[[], T], path: Path) -> T:
    """Read a file of a corpus. If the disk does not respond, retry for some minutes, because the error is not about the
    content."""

    def refuse(error: Exception) -> None:
        if not is_outage(error):
            raise error

    remedy = "check that its disk or server responds, and start again."
    return retry_call(read, target=str(path), retry=RETRY, refuse=refuse, remedy=remedy)


def is_outage(error: Exception) -> bool:
    """Whether an error is a failure of the disk, and not of the content of a file."""
    return isinstance(error, OSError) and error.errno in OUTAGE_ERRORS
