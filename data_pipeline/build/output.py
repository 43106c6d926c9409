"""The corpus appears whole or not at all: it is made in a folder of its own, which gets its name when it is finished.

That folder outlives a build that is killed, and the next one goes on in it. It also outlives one that failed after a
while: a mistake in the last file should not cost the work on all others.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from megaptm.data.shards import read_manifest
from megaptm.errors import UserError

WORTH_KEEPING = 60.0
"""Seconds of work that a build which fails does not throw away."""
SCRATCH = "scratch"


@dataclass(frozen=True)
class Output:
    """Where a build writes."""

    folder: Path
    """The corpus in the making."""
    scratch: Path
    """Unfinished work; gone when the corpus is finished."""

    def place(self, file: str | Path, name: str) -> None:
        """Give a finished file of the scratch folder its name in the corpus; it stays where it is, too."""
        try:
            os.link(file, self.folder / name)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK):
                raise
            shutil.copyfile(file, self.folder / name)


@contextmanager
def building(
    out: str | Path, *, overwrite: bool, scratch: str | None = None, console: Console | None = None
) -> Iterator[Output]:
    """A folder to build in, `<out>.building`, which becomes `out` when the block ends."""
    place = Path(os.path.abspath(Path(out).expanduser()))  # `.` has no name to build beside
    _check_free(place, overwrite)
    work = place.with_name(place.name + ".building")
    begun = time.monotonic()
    try:
        work.mkdir(parents=True, exist_ok=True)
        with _locked(work):
            try:
                output = Output(work, Path(scratch) if scratch else work / SCRATCH)
                output.scratch.mkdir(parents=True, exist_ok=True)
                _remove_all_but(work, output.scratch)
                _remove_halves(output.scratch)
                yield output
                shutil.rmtree(output.scratch)
                _put(work, place)
            except BaseException:
                if time.monotonic() - begun < WORTH_KEEPING:
                    shutil.rmtree(work, ignore_errors=True)
                elif console is not None:
                    console.print(f"What is finished waits in {work}: the same command goes on from there.")
                raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(f"the disk of {place} is full: free some space or choose another place.") from None
        raise UserError(
            f"{error.filename or place} cannot be written ({error.strerror}): choose another place."
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


def _remove_halves(folder: Path) -> None:
    """What workers of a killed build were writing. One that still lives fails at its end, and nobody waits for it."""
    for part in folder.rglob("*.part"):
        part.unlink(missing_ok=True)


def _remove_all_but(folder: Path, kept: Path) -> None:
    for entry in folder.iterdir():
        if entry != kept:
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def _put(work: Path, out: Path) -> None:
    old = out.with_name(out.name + ".old")
    if out.exists():
        shutil.rmtree(old, ignore_errors=True)
        out.rename(old)
    work.rename(out)
    shutil.rmtree(old, ignore_errors=True)
