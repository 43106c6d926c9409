"""Atomic creation of files and folders: written under a temporary name, synced to disk, and renamed. Unfinished files
of killed processes are removed."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType

SUFFIX = ".part"
"""Suffix of a temporary name. Such files may be left by a killed process."""

_created: ContextVar[list[Path] | None] = ContextVar("created", default=None)


@contextmanager
def created_paths() -> Iterator[list[Path]]:
    """Collect the paths of all files that are created in this thread while the block runs."""
    paths: list[Path] = []
    before = _created.set(paths)
    try:
        yield paths
    finally:
        _created.reset(before)


class AtomicFile:
    """Context for writing a file or folder under a temporary name. It replaces `path` if the block ends without an
    error.

    Readers, even after a crash, see either the new file or the old one. A folder can only replace an empty folder or
    none.

        >>> with AtomicFile(path) as part:
        ...     part.write_text("complete content")
    """

    def __init__(self, path: str | os.PathLike[str]):
        """Choose the temporary name. Raise `OSError` if `path` is a device, a pipe or a socket: root would replace it
        for all programs."""
        self.path = Path(path)
        if self.path.exists() and not (self.path.is_file() or self.path.is_dir()):
            raise OSError(errno.ENXIO, "Not a regular file, and cannot be replaced by one", str(path))
        # Unique per attempt, because a worker considered dead may still be writing.
        self.part = self.path.with_name(f".{self.path.name}.{os.getpid()}-{secrets.token_hex(4)}{SUFFIX}")

    def commit(self) -> None:
        """Sync and rename the temporary file, so that it survives a power failure."""
        try:
            for path in _walk_inner_first(self.part):
                _apply_umask(path)
                sync_to_disk(path)
            self.part.replace(self.path)
            sync_to_disk(self.path.parent)
            if (paths := _created.get()) is not None:
                paths.append(self.path)
        finally:
            self.discard()

    def discard(self) -> None:
        """Remove the temporary file, if it still exists."""
        if self.part.is_dir():
            shutil.rmtree(self.part, ignore_errors=True)
        else:
            self.part.unlink(missing_ok=True)

    def __enter__(self) -> Path:
        return self.part

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard() if kind else self.commit()


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Write `content` to `path` atomically and sync it to disk.

    An `OSError` names a file, which the system's error for a full disk does not.
    """
    try:
        with AtomicFile(path) as part:
            part.write_bytes(content)
    except OSError as error:
        error.filename = error.filename or os.fspath(path)
        raise


def sync_to_disk(path: Path) -> None:
    """Sync a file, or the entries of a folder, to disk. A renamed file is durable only after its folder is synced."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _apply_umask(path: Path) -> None:
    """Give a file that a library has created for its owner only, as safetensors 0.8 does, the mode of all others."""
    status = path.lstat()
    if stat.S_ISREG(status.st_mode) and stat.S_IMODE(status.st_mode) == 0o600:
        with suppress(OSError, StopIteration):
            # os.umask would change the umask of all threads in between.
            lines = Path("/proc/self/status").read_text().splitlines()
            umask = int(next(line for line in lines if line.startswith("Umask:")).split()[1], 8)
            path.chmod(0o666 & ~umask)


def _walk_inner_first(path: Path) -> Iterator[Path]:
    if path.is_dir():
        for entry in path.iterdir():
            yield from _walk_inner_first(entry)
    yield path


LOCK = ".writing"
"""Lock file in a folder to which several processes write. Each holds it while it writes."""


def is_unfinished_file(path: Path) -> bool:
    """Whether an entry of a folder is the lock of its writers or an unfinished file."""
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
