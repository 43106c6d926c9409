"""Files and folders that a run writes, restricted to its own folder: links are not followed.

A run folder may come from another user, with a link `events.jsonl` to a file of the user.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from megaptm.errors import UserError


def safe_open(path: Path, flags: int, mode: int = 0o666) -> int:
    """Open the regular file at `path` with `flags` of `os.open`; return its descriptor.

    Raises `UserError` for a link, a pipe, a device, or a hard link to a file elsewhere.
    """
    try:
        # O_NONBLOCK, because opening a pipe would block. Not O_TRUNC, because the file is checked first.
        flags_of_open = flags & ~os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags_of_open, mode)
    except OSError:
        refuse_link(path)
        if path.exists() and not path.is_file():
            raise UserError(_refusal_message(path, "is not a regular file")) from None
        raise
    status = os.fstat(descriptor)
    problem = None
    if not stat.S_ISREG(status.st_mode):
        problem = "is not a regular file"
    elif status.st_nlink > 1:
        problem = "has a hard link elsewhere"
    if problem is not None:
        os.close(descriptor)
        raise UserError(_refusal_message(path, problem))
    os.set_blocking(descriptor, True)
    if flags & os.O_TRUNC:
        os.ftruncate(descriptor, 0)
    return descriptor


def refuse_link(path: Path) -> None:
    """Raise `UserError` if `path` is a symbolic link."""
    if path.is_symlink():
        raise UserError(_refusal_message(path, f"is a link to {os.readlink(path)}"))


def _refusal_message(path: Path, problem: str) -> str:
    return f"{path} {problem}: a run writes only to its own folder. Remove it, or replace it by a copy."
