"""Atomic output of a corpus. It is built in a separate folder, which is renamed to its final name after it is complete
and synced to disk. For a URL, the finished files are uploaded, the manifest last.

Results of finished jobs stay in the scratch folder until the corpus is published, so a killed build continues from
there. A build that fails after some time also keeps them: a mistake in the last file should not cost all other work. A
corpus is replaced in two renames. If a build is killed between them, no corpus has the name; the next build first
restores the old corpus.
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
from fnmatch import fnmatchcase
from pathlib import Path

from data_pipeline.corpus.work import JobRunner
from data_pipeline.folders import BUILDING, CORPUS, SCRATCH, SHARDS
from megaptm.console import Console
from megaptm.data.manifest import MANIFEST
from megaptm.data.shards import ShardInfo, read_manifest
from megaptm.errors import FULL_DISK, UserError, describe_full_disk, describe_path_error
from megaptm.storage import exists, expand_home, is_remote, join_path, list_files, remove_file, upload
from megaptm.storage.atomic_file import SUFFIX, sync_to_disk

MIN_STORED_SECONDS = 60.0
"""Minimum seconds of finished work that a failed build keeps instead of discarding."""
REPLACED = "replaced"
"""Subfolder of a build for the corpus that it replaces, until the new one has its name."""
OWN_SUFFIXES = (".tar", ".index.npy", ".shards.npy", ".addresses.jsonl")
"""Suffixes of the files of a corpus, besides its manifest, report and tokenizer."""
LEFTOVERS = (".nfs*", ".DS_Store", f".*{SUFFIX}")
"""Patterns of hidden files that the system or a killed process leaves in a folder. A build may remove them."""
CACHE = "~/.cache/megaptm/builds"
"""Default scratch folder of corpora that are uploaded to a URL."""


class CorpusOutput(ABC):
    """Destination of a corpus build: a local folder or a URL."""

    homes: tuple[Path, ...]
    """Scratch folders used by this build only, locked during the build and removed after publication. The first is next
    to the output."""
    scratch: Path
    """Folder of unfinished work, inside one of `homes`."""

    @property
    def folder(self) -> Path:
        """Return the folder of the unfinished corpus."""
        return self.homes[0] / CORPUS

    def link(self, file: str | Path, name: str) -> None:
        """Link a finished file of the scratch folder into the corpus; the original stays."""
        try:
            os.link(file, self.folder / name)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK):
                raise
            shutil.copyfile(file, self.folder / name)

    def link_shards(self, split: str, written: Iterable[ShardInfo | None]) -> Iterator[ShardInfo]:
        """Link the finished shards of a split and their indexes into the corpus, and yield them with their new names.
        An element is None for a job without output."""
        for number, info in enumerate(info for info in written if info):
            named = dataclasses.replace(info, name=f"{split}-{number:06d}.tar")
            # The folder is not taken from a stored result, which another build may have written.
            self.link(self.scratch / SHARDS / Path(info.name).name, named.name)
            self.link(self.scratch / SHARDS / Path(info.index_name).name, named.index_name)
            yield named

    def begin(self) -> None:
        """Prepare the output folders of a corpus build. The folders in `homes` must be locked."""
        self.scratch.mkdir(parents=True, exist_ok=True)
        for home in self.homes:
            _remove_all_but(home, self.scratch)
        _remove_partial_files(self.scratch)
        self.folder.mkdir()

    @abstractmethod
    def publish(self, work: JobRunner) -> None:
        """Publish the finished corpus under its final name."""

    def drop(self) -> None:
        """Remove the output folders of a corpus build, except a published corpus."""
        for home in self.homes:
            shutil.rmtree(home, ignore_errors=True)


class LocalOutput(CorpusOutput):
    """Output of a corpus build to a local folder, built next to its destination and renamed."""

    def __init__(self, out: str, scratch: str | None, overwrite: bool):
        self.out = Path(os.path.abspath(expand_home(out)))  # `.` has no name from which to form a sibling folder
        self.overwrite = overwrite
        _check_free(self.out, overwrite)
        home = self.out.with_name(self.out.name + BUILDING)
        self.homes = (home,) if scratch is None else (home, _own_folder(scratch, str(self.out)))
        self.scratch = self.homes[-1] / SCRATCH
        self._replaced = home / REPLACED

    def begin(self) -> None:
        self._put_back()
        _check_free(self.out, self.overwrite)  # checked again, because another build may have finished in the meantime
        super().begin()

    def publish(self, work: JobRunner) -> None:
        for path in (*self.folder.rglob("*"), self.folder):
            sync_to_disk(path)
        if self.out.exists():
            self.out.rename(self._replaced)
        self.folder.rename(self.out)
        sync_to_disk(self.out.parent)
        self.drop()

    def drop(self) -> None:
        self._put_back()
        super().drop()

    def _put_back(self) -> None:
        """Restore the old corpus to its name, unless the new one has been published."""
        if os.path.lexists(self._replaced) and self.folder.exists() and not os.path.lexists(self.out):
            self._replaced.rename(self.out)


class RemoteOutput(CorpusOutput):
    """Output of a corpus build to a URL. The old manifest there is removed before files are replaced, so that no
    manifest names files of two builds."""

    def __init__(self, out: str, scratch: str | None, overwrite: bool):
        self.out = out.rstrip("/")
        if exists(join_path(self.out, MANIFEST)):
            if not overwrite:
                raise _exists_error(self.out)
            _refuse_files_of_the_user(self.out, list_files(self.out))
        elif files := list_files(self.out):
            raise UserError(
                f"{self.out} contains {next(iter(files))} but no corpus: choose another URL, or remove its files."
            )
        self.homes = (_own_folder(scratch or CACHE, self.out),)
        self.scratch = self.homes[0] / SCRATCH

    def publish(self, work: JobRunner) -> None:
        files = [path for path in sorted(self.folder.rglob("*")) if path.is_file()]
        sent = {path.relative_to(self.folder).as_posix(): path for path in files}
        manifest = sent.pop(MANIFEST)
        remove_file(join_path(self.out, MANIFEST))
        work.run(
            "upload",
            _send_file,
            [SendJob(str(path), join_path(self.out, name)) for name, path in sent.items()],
            keep=False,
        )
        for name in list_files(self.out).keys() - sent.keys():
            remove_file(join_path(self.out, name))
        upload(manifest, join_path(self.out, MANIFEST))
        self.drop()


@dataclass(frozen=True)
class SendJob:
    """Job that uploads a file of a corpus to a URL."""

    path: str
    url: str


def _send_file(job: SendJob) -> None:
    """Upload a file of a corpus atomically."""
    upload(Path(job.path), job.url)


@contextmanager
def open_output(
    out: str | Path, *, overwrite: bool, scratch: str | None = None, console: Console | None = None
) -> Iterator[CorpusOutput]:
    """Open the output of a corpus build. `publish` turns its folder into the corpus."""
    start_time = time.monotonic()
    output: CorpusOutput = (RemoteOutput if is_remote(out) else LocalOutput)(str(out), scratch, overwrite)
    try:
        with ExitStack() as locks:
            for home in output.homes:
                home.mkdir(parents=True, exist_ok=True)
                locks.enter_context(_lock_folder(home))
                _refuse_other_entries(home)
            earlier = output.scratch.exists()
            try:
                output.begin()
                yield output
            except BaseException:
                if not earlier and time.monotonic() - start_time < MIN_STORED_SECONDS:
                    output.drop()
                elif console is not None:
                    console.print(f"Finished work is kept in {output.scratch}: run the same command to continue.")
                raise
    except OSError as error:
        if error.errno in FULL_DISK:
            raise UserError(f"{describe_full_disk(error, output.homes[0])} or choose another folder.") from None
        raise UserError(
            f"{error.filename or out} cannot be written ({describe_path_error(error, out)}): choose another folder."
        ) from None


def _check_free(out: Path, overwrite: bool) -> None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not out.is_dir():
        raise UserError(f"{out} is a file: name a folder that does not exist yet.")
    try:
        read_manifest(out)
    except UserError:
        raise UserError(f"{out} contains other files than a corpus: choose another folder, or empty it.") from None
    if not overwrite:
        raise _exists_error(str(out))
    _refuse_files_of_the_user(out, (entry.name for entry in out.iterdir()))


def _refuse_files_of_the_user(out: str | Path, names: Iterable[str]) -> None:
    """Raise `UserError` if the folder of a corpus that is to be replaced has files that no build writes."""
    for name in sorted(names):
        is_own = name in (MANIFEST, "tokenizer") or name.startswith("report.") or name.endswith(OWN_SUFFIXES)
        if name and not (is_own or _is_leftover(name)):
            raise UserError(
                f"{join_path(str(out), name)} would be removed with the corpus beside it: move it, or choose another "
                "`out`."
            )


def _is_leftover(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in LEFTOVERS)


def _exists_error(out: str) -> UserError:
    return UserError(f"{out} already contains a corpus: choose another folder, or replace it with overwrite=true.")


def _own_folder(scratch: str, out: str) -> Path:
    """Return the folder for `out` inside a scratch folder that several builds may share."""
    return expand_home(scratch) / hashlib.sha256(out.encode()).hexdigest()[:16]


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(handle), os.stat(folder)):  # removed by a build that has just ended
            raise BlockingIOError
    except BlockingIOError:
        os.close(handle)
        raise UserError(f"{folder} is in use by another build: wait for it, or choose another folder.") from None
    try:
        yield
    finally:
        os.close(handle)


def _refuse_other_entries(home: Path) -> None:
    """Raise `UserError` if a folder in which a corpus is to be built has files of the user, which the build would
    remove."""
    for entry in home.iterdir():
        if entry.name not in (SCRATCH, CORPUS, REPLACED) and not _is_leftover(entry.name):
            raise UserError(f"{entry} would be removed by the build: move it, or choose another folder as `out`.")


def _remove_partial_files(folder: Path) -> None:
    """Remove incomplete files of a killed build. A worker of it that is still alive then fails, which has no effect."""
    for part in folder.rglob(f"*{SUFFIX}"):
        part.unlink(missing_ok=True)


def _remove_all_but(folder: Path, exception: Path) -> None:
    for entry in folder.iterdir():
        if entry != exception:
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
