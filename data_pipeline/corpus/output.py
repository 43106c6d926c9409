"""The corpus appears whole or not at all: it is made in a folder of its own, which gets its name when it is finished,
or is sent to its URL then, the manifest last.

That folder outlives a build that is killed, and the next one goes on in it. It also outlives one that failed after a
while: a mistake in the last file should not cost the work on all others.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from data_pipeline.corpus.work import JobRunner
from data_pipeline.folders import BUILDING, SCRATCH
from megaptm.data.manifest import MANIFEST
from megaptm.data.shards import read_manifest
from megaptm.errors import FULL_DISK, UserError
from megaptm.storage import exists, is_remote, join, listed, remove, upload
from megaptm.storage.atomic_file import SUFFIX

WORTH_KEEPING = 60.0
"""Seconds of work that a build which fails does not throw away."""
CACHE = "~/.cache/megaptm/builds"
"""Where corpora for other places are made, unless `scratch` says where."""


class CorpusOutput(ABC):
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

    @abstractmethod
    def publish(self, work: JobRunner) -> None:
        """Let the finished corpus appear."""


class LocalOutput(CorpusOutput):
    """A folder on this machine, made beside its place and renamed."""

    def __init__(self, out: str, scratch: str | None, overwrite: bool):
        self.out = Path(os.path.abspath(Path(out).expanduser()))  # `.` has no name to build beside
        _check_free(self.out, overwrite)
        self.folder = self.out.with_name(self.out.name + BUILDING)
        self.scratch = Path(scratch or self.folder) / SCRATCH

    def publish(self, work: JobRunner) -> None:
        shutil.rmtree(self.scratch)
        old = self.out.with_name(self.out.name + ".old")
        if self.out.exists():
            shutil.rmtree(old, ignore_errors=True)
            self.out.rename(old)
        self.folder.rename(self.out)
        shutil.rmtree(old, ignore_errors=True)


class RemoteOutput(CorpusOutput):
    """A URL. While its old corpus is being replaced there is none: a manifest never names files of two builds."""

    def __init__(self, out: str, scratch: str | None, overwrite: bool):
        self.out = out.rstrip("/")
        if exists(join(self.out, MANIFEST)):
            if not overwrite:
                raise _taken(self.out)
        elif found := listed(self.out):
            raise UserError(
                f"{self.out} holds {next(iter(found))}, and no corpus: choose another place, or remove what is there."
            )
        name = hashlib.sha256(self.out.encode()).hexdigest()[:16]
        self.folder = Path(scratch or CACHE).expanduser() / name
        self.scratch = self.folder / SCRATCH

    def publish(self, work: JobRunner) -> None:
        files = [path for path in sorted(self.folder.rglob("*")) if path.is_file() and self.scratch not in path.parents]
        sent = {path.relative_to(self.folder).as_posix(): path for path in files}
        manifest = sent.pop(MANIFEST)
        remove(join(self.out, MANIFEST))
        work.run("upload", send, [SendJob(str(path), join(self.out, name)) for name, path in sent.items()], keep=False)
        for name in listed(self.out).keys() - sent.keys():
            remove(join(self.out, name))
        upload(manifest, join(self.out, MANIFEST))
        shutil.rmtree(self.folder)


@dataclass(frozen=True)
class SendJob:
    """Copy a file to a URL."""

    path: str
    url: str


def send(job: SendJob) -> None:
    """Whole or not at all."""
    upload(Path(job.path), job.url)


@contextmanager
def building(
    out: str | Path, *, overwrite: bool, scratch: str | None = None, console: Console | None = None
) -> Iterator[CorpusOutput]:
    """A folder to build in, for `publish` to turn into the corpus."""
    begun = time.monotonic()
    output: CorpusOutput = (RemoteOutput if is_remote(out) else LocalOutput)(str(out), scratch, overwrite)
    try:
        output.folder.mkdir(parents=True, exist_ok=True)
        with _locked(output.folder):
            try:
                output.scratch.mkdir(parents=True, exist_ok=True)
                _remove_all_but(output.folder, output.scratch)
                _remove_halves(output.scratch)
                yield output
            except BaseException:
                if time.monotonic() - begun < WORTH_KEEPING:
                    shutil.rmtree(output.scratch, ignore_errors=True)
                    shutil.rmtree(output.folder, ignore_errors=True)
                elif console is not None:
                    console.print(f"What is finished waits in {output.folder}: the same command goes on from there.")
                raise
    except OSError as error:
        if error.errno in FULL_DISK:
            raise UserError(f"the disk of {output.folder} is full: free some space or choose another place.") from None
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
        raise _taken(str(out))


def _taken(out: str) -> UserError:
    return UserError(f"{out} already holds a corpus: choose another place, or replace it with overwrite=true.")


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
    for part in folder.rglob(f"*{SUFFIX}"):
        part.unlink(missing_ok=True)


def _remove_all_but(folder: Path, kept: Path) -> None:
    for entry in folder.iterdir():
        if entry != kept:
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
