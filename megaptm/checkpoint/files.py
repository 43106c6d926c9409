"""The file operations that checkpoints need. All are here, so that another kind of storage replaces one file."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from megaptm.errors import UserError

# EFBIG: the limit that `ulimit -f` sets.
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# Handing a chunk of this size to another thread costs nothing beside hashing it, and it stays in the processor's cache.
CHUNK_BYTES = 1 << 20
# How far hashing may stay behind: it bounds the memory held by what was copied from a GPU.
CHUNKS_AHEAD = 32
# Left to itself the system begins to write to the disk when a tenth of the memory is waiting, or at the final fsync.
FLUSH_BYTES = 32 << 20


class StorageError(UserError):
    """The storage did not take or give what it was asked: full, gone, unreadable. One sentence, as every user error."""


class HashedWriter:
    """A new file that is copied into the system's memory, hashed and put on the disk all at once, in three threads."""

    def __init__(self, path: Path) -> None:
        self.size = 0
        self._digest = hashlib.sha256()
        self._file = path.open("wb")
        self._hashing = ThreadPoolExecutor(1, thread_name_prefix="sha256")
        self._hashed: deque[Future[None]] = deque()
        self._flushing = ThreadPoolExecutor(1, thread_name_prefix="flush")
        self._flushed: Future[None] | None = None
        self._flush_at = FLUSH_BYTES

    def write(self, data: memoryview | bytes) -> None:
        view = memoryview(data)
        for start in range(0, len(view), CHUNK_BYTES):
            chunk = view[start : start + CHUNK_BYTES]
            self._hashed.append(self._hashing.submit(self._digest.update, chunk))
            self._file.write(chunk)
            self.size += len(chunk)
            self._flush_from_time_to_time()
            if len(self._hashed) > CHUNKS_AHEAD:
                self._hashed.popleft().result()

    def _flush_from_time_to_time(self) -> None:
        if self.size < self._flush_at or (self._flushed is not None and not self._flushed.done()):
            return
        if self._flushed is not None:
            self._flushed.result()  # an error of the disk is told to one fsync only: pass it on
        self._flushed = self._flushing.submit(os.fdatasync, self._file.fileno())
        self._flush_at = self.size + FLUSH_BYTES

    def finish(self) -> str:
        """Put everything on the disk itself; the sha256 of the whole file."""
        self._file.flush()
        if self._flushed is not None:
            self._flushed.result()
        os.fsync(self._file.fileno())
        for hashed in self._hashed:
            hashed.result()
        return self._digest.hexdigest()

    def __enter__(self) -> HashedWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self._hashing.shutdown()
        self._flushing.shutdown()
        # A full disk is told by the write that met it, not again by the flush that closing does.
        with contextlib.suppress(OSError):
            self._file.close()


def read_into(descriptor: int, target: memoryview, position: int) -> int:
    """Fill `target` from the byte `position` on; the bytes read, fewer than asked only where the file ends."""
    done = 0
    while done < len(target):
        count = os.preadv(descriptor, [target[done:]], position + done)
        if count == 0:
            break
        done += count
    return done


def sha256_of(path: Path) -> str:
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def free_bytes(folder: Path) -> int:
    """Bytes that this user may still write to the file system that holds `folder`."""
    return shutil.disk_usage(folder).free


def remove_tree(folder: Path) -> None:
    """Remove a folder, whoever else is removing it or writing into it."""
    for _ in range(3):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return


@contextlib.contextmanager
def explained(what: str, folder: Path) -> Iterator[None]:
    """Turns an operating system's error while doing `what` in `folder` into one sentence with a remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise StorageError(
                f"no space left to {what}: {_free_sentence(folder)}; free some space there, keep fewer checkpoints "
                "(checkpoint.keep), or choose another run=FOLDER; checkpoints saved before are intact"
            ) from error
        where = error.filename or folder
        raise StorageError(f"cannot {what}: {where}: {error.strerror or error}") from error


def _free_sentence(folder: Path) -> str:
    place = next((parent for parent in (folder, *folder.parents) if parent.exists()), Path("/"))
    return f"{human_bytes(free_bytes(place))} free in {place}"


def human_bytes(count: float) -> str:
    """`1234567` -> `1.2 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
