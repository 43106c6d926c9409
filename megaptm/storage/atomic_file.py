"""Files and folders that appear whole: made under another name, and on the disk before they get their own."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType

SUFFIX = ".part"
"""Of what is being made, or was when its process died."""

_noted: ContextVar[list[Path] | None] = ContextVar("appeared", default=None)


@contextmanager
def appeared() -> Iterator[list[Path]]:
    """All that appears in this thread while the block runs: for whoever answers for it, and must forget nothing."""
    paths: list[Path] = []
    before = _noted.set(paths)
    try:
        yield paths
    finally:
        _noted.reset(before)


class AtomicFile:
    """A name beside `path` to write a file or a folder under; it takes the place of `path` when the block ends well.

    A reader, or a crash, sees all of the new file or the old one. A folder takes the place of none, or of an empty one.

    >>> with AtomicFile(path) as part:
    ...     part.write_text("all of it")
    """

    def __init__(self, path: str | os.PathLike[str]):
        """An `OSError` where a device, a pipe or a socket is: a file would take its place, for all programs of who may
        write in `/dev`."""
        self.path = Path(path)
        if self.path.exists() and not (self.path.is_file() or self.path.is_dir()):
            raise OSError(errno.ENXIO, "it is no file, and one would take its place", str(path))
        # A name of its own for each attempt: a worker believed dead may still be at it.
        self.part = self.path.with_name(f".{self.path.name}.{os.getpid()}-{secrets.token_hex(4)}{SUFFIX}")

    def keep(self) -> None:
        """Let it appear, for good: also after a power cut."""
        try:
            for written in _inner_first(self.part):
                sync(written)
            self.part.replace(self.path)
            sync(self.path.parent)
            if (noted := _noted.get()) is not None:
                noted.append(self.path)
        finally:
            self.drop()

    def drop(self) -> None:
        """Leave nothing of it, unless it has appeared."""
        if self.part.is_dir():
            shutil.rmtree(self.part, ignore_errors=True)
        else:
            self.part.unlink(missing_ok=True)

    def __enter__(self) -> Path:
        return self.part

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.drop() if kind else self.keep()


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Put `content` at `path`, all of it or nothing; it is on the disk when this returns. An error of the system names
    a file, which that of a full disk does not by itself."""
    try:
        with AtomicFile(path) as part:
            part.write_bytes(content)
    except OSError as error:
        error.filename = error.filename or os.fspath(path)
        raise


def sync(path: Path) -> None:
    """Put a file on the disk, or a folder's list of names: a renamed file is safe only after this."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _inner_first(path: Path) -> Iterator[Path]:
    if path.is_dir():
        for entry in path.iterdir():
            yield from _inner_first(entry)
    yield path
