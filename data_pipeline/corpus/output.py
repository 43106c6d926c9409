"""The corpus appears whole or not at all: it is made in a folder of its own, which gets its name when it is finished
and on the disk, or is sent to its URL then, the manifest last.

Finished jobs wait in the scratch folder until the corpus has appeared: whenever a build is killed, the next one goes on
from there. So it does after one that failed after a while: a mistake in the last file should not cost the work on all
others. One corpus that replaces another takes its name in two steps: a build killed between them leaves none there, and
the next one puts the old one back before it begins.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import hashlib
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.corpus.work import JobRunner
from data_pipeline.folders import BUILDING, CORPUS, SCRATCH, SHARDS
from megaptm.console import Console
from megaptm.data.manifest import MANIFEST
from megaptm.data.shards import ShardInfo, read_manifest
from megaptm.errors import FULL_DISK, UserError, why_no_place, why_no_room
from megaptm.storage import exists, is_remote, join, listed, remove, upload
from megaptm.storage.atomic_file import SUFFIX, sync

WORTH_KEEPING = 60.0
"""Seconds of work that a build which fails does not throw away."""
CACHE = "~/.cache/megaptm/builds"
"""Where corpora for other places are made, unless `scratch` says where."""


class CorpusOutput(ABC):
    """Where a build writes."""

    homes: tuple[Path, ...]
    """Folders of this output alone, locked while it is built and gone when it has appeared. The first is beside it."""
    scratch: Path
    """In one of them: unfinished work."""

    @property
    def folder(self) -> Path:
        """The corpus in the making."""
        return self.homes[0] / CORPUS

    def place(self, file: str | Path, name: str) -> None:
        """Give a finished file of the scratch folder its name in the corpus; it stays where it is, too."""
        try:
            os.link(file, self.folder / name)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK):
                raise
            shutil.copyfile(file, self.folder / name)

    def place_shards(self, split: str, written: Iterable[ShardInfo | None]) -> Iterator[ShardInfo]:
        """Give finished shards of a split, and their indexes, names in the corpus: yields them with these; jobs that
        had nothing to write, None, have no shard."""
        for number, info in enumerate(info for info in written if info):
            named = dataclasses.replace(info, name=f"{split}-{number:06d}.tar")
            # Where files are is not learned from a result that was found.
            self.place(self.scratch / SHARDS / Path(info.name).name, named.name)
            self.place(self.scratch / SHARDS / Path(info.index_name).name, named.index_name)
            yield named

    def begin(self) -> None:
        """Make the place ready to build in. The homes are locked."""
        self.scratch.mkdir(parents=True, exist_ok=True)
        for home in self.homes:
            _remove_all_but(home, self.scratch)
        _remove_halves(self.scratch)
        self.folder.mkdir()

    @abstractmethod
    def publish(self, work: JobRunner) -> None:
        """Let the finished corpus appear."""

    def drop(self) -> None:
        """Leave nothing of it but what has appeared."""
        for home in self.homes:
            shutil.rmtree(home, ignore_errors=True)


class LocalOutput(CorpusOutput):
    """A folder on this machine, made beside its place and renamed."""

    def __init__(self, out: str, scratch: str | None, overwrite: bool):
        self.out = Path(os.path.abspath(Path(out).expanduser()))  # `.` has no name to build beside
        self.overwrite = overwrite
        _check_free(self.out, overwrite)
        home = self.out.with_name(self.out.name + BUILDING)
        self.homes = (home,) if scratch is None else (home, _own_folder(scratch, str(self.out)))
        self.scratch = self.homes[-1] / SCRATCH
        self._replaced = home / "replaced"

    def begin(self) -> None:
        self._put_back()
        _check_free(self.out, self.overwrite)  # again: another build may have ended since
        super().begin()

    def publish(self, work: JobRunner) -> None:
        for path in (*self.folder.rglob("*"), self.folder):
            sync(path)
        if self.out.exists():
            self.out.rename(self._replaced)
        self.folder.rename(self.out)
        sync(self.out.parent)
        self.drop()

    def drop(self) -> None:
        self._put_back()
        super().drop()

    def _put_back(self) -> None:
        """Let the old corpus have its name again, unless the new one has got it."""
        if os.path.lexists(self._replaced) and self.folder.exists() and not os.path.lexists(self.out):
            self._replaced.rename(self.out)


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
        self.homes = (_own_folder(scratch or CACHE, self.out),)
        self.scratch = self.homes[0] / SCRATCH

    def publish(self, work: JobRunner) -> None:
        files = [path for path in sorted(self.folder.rglob("*")) if path.is_file()]
        sent = {path.relative_to(self.folder).as_posix(): path for path in files}
        manifest = sent.pop(MANIFEST)
        remove(join(self.out, MANIFEST))
        work.run("upload", send, [SendJob(str(path), join(self.out, name)) for name, path in sent.items()], keep=False)
        for name in listed(self.out).keys() - sent.keys():
            remove(join(self.out, name))
        upload(manifest, join(self.out, MANIFEST))
        self.drop()


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
        with ExitStack() as locks:
            for home in output.homes:
                home.mkdir(parents=True, exist_ok=True)
                locks.enter_context(_locked(home))
            earlier = output.scratch.exists()
            try:
                output.begin()
                yield output
            except BaseException:
                if not earlier and time.monotonic() - begun < WORTH_KEEPING:
                    output.drop()
                elif console is not None:
                    console.print(f"What is finished waits in {output.scratch}: the same command goes on from there.")
                raise
    except OSError as error:
        if error.errno in FULL_DISK:
            raise UserError(f"{why_no_room(error, output.homes[0])} or choose another place.") from None
        raise UserError(
            f"{error.filename or out} cannot be written ({why_no_place(error, out)}): choose another place."
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


def _own_folder(scratch: str, out: str) -> Path:
    """What is made for `out` in a folder that builds of several may share."""
    return Path(scratch).expanduser() / hashlib.sha256(out.encode()).hexdigest()[:16]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(handle), os.stat(folder)):  # its build has just ended, and removed it
            raise BlockingIOError
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
