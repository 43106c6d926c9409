"""What killed processes leave of files that were to appear whole."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from megaptm.storage.atomic_file import SUFFIX

LOCK = ".writing"
"""In a folder that several processes write to: each holds it while it does."""


def is_rest(path: Path) -> bool:
    """Whether an entry of such a folder is the lock, or a half of a file: nothing that anybody reads."""
    return path.name == LOCK or (path.name.startswith(".") and path.name.endswith(SUFFIX))


@contextmanager
def writing_in(folder: Path) -> Iterator[None]:
    """One of several processes that may write whole files to a folder at once. Who begins when no other writes removes
    what killed ones have left; where the file system has no locks nobody knows, and it stays."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a") as handle:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for half in folder.rglob(f".*{SUFFIX}"):
                half.unlink(missing_ok=True)
        # Nothing of one's own is there yet: whoever gets the lock in between finds nothing to remove.
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_SH)
        yield
