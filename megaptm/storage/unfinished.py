"""Cleanup of unfinished files of killed processes."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from megaptm.storage.atomic_file import SUFFIX

LOCK = ".writing"
"""Lock file in a folder to which several processes write. Each holds it while it writes."""


def is_unfinished(path: Path) -> bool:
    """Whether an entry of such a folder is the lock or an unfinished file."""
    return path.name == LOCK or (path.name.startswith(".") and path.name.endswith(SUFFIX))


@contextmanager
def write_session(folder: Path) -> Iterator[None]:
    """Context of a process that writes files atomically to a shared folder.

    A process that starts while no other writes removes the files that killed ones have left. Without file locks, they
    are not removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a") as handle:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for unfinished in folder.rglob(f".*{SUFFIX}"):
                unfinished.unlink(missing_ok=True)
        # Not atomic, but this process has no files yet that another process could remove in between.
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_SH)
        yield
