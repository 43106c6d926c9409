"""The corpus folder appears whole or not at all: it is built beside its place and renamed when it is finished."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from megaptm.data.shards import read_manifest
from megaptm.errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG)


@contextmanager
def building(out: Path, *, overwrite: bool) -> Iterator[Path]:
    """A folder to build in, `<out>.building`, which becomes `out` when the block ends and vanishes when it fails."""
    out = Path(os.path.abspath(out))  # `.` has no name to build beside
    _check_free(out, overwrite)
    work = out.with_name(out.name + ".building")
    try:
        work.mkdir(parents=True, exist_ok=True)
        with _locked(work):
            try:
                _empty(work)  # what a build that was killed left here
                yield work
                _put(work, out)
            except BaseException:
                shutil.rmtree(work, ignore_errors=True)
                raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(f"the disk of {out} is full: free some space or choose another place.") from None
        raise UserError(
            f"{error.filename or out} cannot be written ({error.strerror}): choose another place."
        ) from None


def _check_free(out: Path, overwrite: bool) -> None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not out.is_dir():
        raise UserError(f"{out} is a file: name a folder that does not exist yet.")
    try:
        read_manifest(out)
    except UserError:
        raise UserError(f"{out} holds something that is not a corpus: choose another place or empty it.") from None
    if not overwrite:
        raise UserError(f"{out} already holds a corpus: choose another place, or say that it may be overwritten.")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise UserError(f"{folder} is in use by another build: wait for it, or choose another place.") from None
    try:
        yield
    finally:
        os.close(handle)


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def _put(work: Path, out: Path) -> None:
    old = out.with_name(out.name + ".old")
    if out.exists():
        shutil.rmtree(old, ignore_errors=True)
        out.rename(old)
    work.rename(out)
    shutil.rmtree(old, ignore_errors=True)
