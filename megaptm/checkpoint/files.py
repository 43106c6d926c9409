"""The file operations that checkpoints need. All are here, so that another kind of storage replaces one file."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from io import FileIO
from pathlib import Path
from typing import TypeVar

from megaptm.errors import FULL_DISK, UserError, why_no_room
from megaptm.storage.files import plain_file
from megaptm.storage.retry import OutageError, RetryPolicy, keep_trying

T = TypeVar("T")

# How long a file system that fails is asked again: a server of files that restarts is back within minutes.
RETRY = RetryPolicy()
WRITE_RETRY = RetryPolicy(seconds=60.0)
"""How long a checkpoint is tried to be written, which may keep training waiting: then the run goes on without it."""
NO_RETRY = (
    *(*FULL_DISK, errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.EISDIR),
    *(errno.ENAMETOOLONG, errno.ELOOP),
)
"""Numbers of errors that no waiting mends: a person must, or another job has taken a folder away."""

# Handing a chunk of this size to another thread costs nothing beside hashing it, and it stays in the processor's cache.
CHUNK_BYTES = 1 << 20
# How far hashing may stay behind: it bounds the memory held by what was copied from a GPU.
CHUNKS_AHEAD = 32
# Left to itself the system begins to write to the disk when a tenth of the memory is waiting, or at the final fsync.
FLUSH_BYTES = 32 << 20


class StorageError(UserError):
    """The storage did not take or give what it was asked: full, gone, unreadable. One sentence, as every user error."""


class DamagedError(StorageError):
    """What was read is not what was written. An error while reading is never this: it says nothing of what is there."""


class UnreadableError(StorageError):
    """What is stored cannot be read now: a file system that fails, a right or a mount that is missing."""


class NotSavedError(StorageError):
    """The storage went on failing while a checkpoint was written: the run can go on, and save a later step."""


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


class RetriedFile:
    """A file to read, asked again and opened again while its file system fails.

    Raises `FileNotFoundError`, and `UnreadableError` for every other error that does not pass.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None

    def size(self) -> int:
        """Bytes, as whoever opens the file sees them: asked by its name, network file systems answer from a cache."""
        return self._try(lambda descriptor: os.fstat(descriptor).st_size)

    def read_into(self, target: memoryview, position: int) -> int:
        """Fill `target` from the byte `position` on; the bytes read, fewer than asked only where the file ends."""
        done = 0
        while done < len(target):
            count = self._try(partial(_read_at, target=target[done:], position=position + done))
            if count == 0:
                break
            done += count
        return done

    def sha256(self) -> str:
        digest, chunk, position = hashlib.sha256(), memoryview(bytearray(CHUNK_BYTES)), 0
        while count := self.read_into(chunk, position):
            digest.update(chunk[:count])
            position += count
        return digest.hexdigest()

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def __enter__(self) -> RetriedFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _try(self, call: Callable[[int], T]) -> T:
        def attempt() -> T:
            try:
                if self._file is None:
                    self._file = FileIO(plain_file(self.path))  # a pipe would be waited for
                return call(self._file.fileno())
            except OSError:
                self.close()  # a handle that is stale stays so: the next attempt opens the file anew
                raise

        return read_with_retries(self.path, attempt)


def _read_at(descriptor: int, *, target: memoryview, position: int) -> int:
    return os.preadv(descriptor, [target], position)


def read_with_retries(path: Path, call: Callable[[], T]) -> T:
    """What `call` reads of `path`, once it succeeds; raises what `RetriedFile` does."""

    def refuse(error: Exception) -> None:
        if not isinstance(error, OSError) or isinstance(error, FileNotFoundError | NotADirectoryError):
            raise error
        if isinstance(error, PermissionError) or error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise UnreadableError(f"{path} cannot be read ({error.strerror}): {NOTHING_LOST}") from error

    try:
        return keep_trying(call, what=str(path), retry=RETRY, refuse=refuse, remedy=NOTHING_LOST)
    except OutageError as error:
        raise UnreadableError(str(error)) from None


NOTHING_LOST = (
    "nothing is lost by that, and nothing was changed; make it readable (its disk, mount or server, and your right to "
    "read it), and start again."
)


def names_in(folder: Path) -> list[str]:
    """What a folder holds; nothing where there is none."""
    try:
        return read_with_retries(folder, lambda: os.listdir(folder))
    except FileNotFoundError:
        if folder.is_symlink():
            where = os.readlink(folder)
            raise UnreadableError(f"{folder} is a link to {where}, which is not there: {NOTHING_LOST}") from None
        return []
    except NotADirectoryError:
        return []  # a file is in the way, which whoever makes the folder will be told


def is_there(path: Path) -> bool:
    """As `Path.exists`, which takes some errors for an answer."""
    try:
        read_with_retries(path, lambda: os.stat(path))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def read_whole(path: Path) -> bytes:
    """The content of a small file."""
    return read_with_retries(path, lambda: plain_file(path).read_bytes())


def sha256_of(path: Path) -> str:
    with RetriedFile(path) as file:
        return file.sha256()


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
        if error.errno in (errno.EFBIG, errno.EDQUOT):
            raise StorageError(
                f"cannot {what}: {why_no_room(error, folder)}; checkpoints saved before are intact"
            ) from error
        if error.errno in FULL_DISK:
            raise StorageError(
                f"no space left to {what}: {_free_sentence(folder)}; free some space there, or move the run folder to "
                "a larger disk; checkpoints saved before are intact"
            ) from error
        where = error.filename or folder
        raise StorageError(f"cannot {what}: {where}: {error.strerror or error}") from error


def write_with_retries(what: str, folder: Path, work: Callable[[], T]) -> T:
    """What `work` returns, called again while the storage fails, so it must be repeatable. `what` says what it does.

    Raises `NotSavedError` where the storage goes on failing, and what `explained` does for errors that stay.
    """

    def refuse(error: Exception) -> None:
        if not isinstance(error, OSError) or error.errno in NO_RETRY:
            raise error

    with explained(what, folder):
        try:
            return keep_trying(work, what=str(folder), retry=WRITE_RETRY, refuse=refuse, remedy=SEE_DISK)
        except OutageError as error:
            raise NotSavedError(f"cannot {what}: {error}") from error


SEE_DISK = "see that its disk or server answers."


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
