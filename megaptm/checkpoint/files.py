"""File operations of checkpoints. All are in this module, so that another kind of storage can replace it."""

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

from megaptm.errors import FULL_DISK, UserError, describe_full_disk
from megaptm.storage.files import regular_file
from megaptm.storage.retry import OutageError, RetryPolicy, retry_call

T = TypeVar("T")

# Patience with a failing file system when reading. A restarted file server is back within minutes.
RETRY = RetryPolicy()
WRITE_RETRY = RetryPolicy(seconds=60.0)
"""Retry limits for writing a checkpoint, which may block training. After that the run continues without the
checkpoint."""
NO_RETRY = (
    *(*FULL_DISK, errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.EISDIR),
    *(errno.ENAMETOOLONG, errno.ELOOP),
)
"""Error numbers of file operations that are not retried: a user must act, or another job has removed a folder."""

# Large enough that passing a chunk to another thread is cheap compared to hashing it, small enough for the cache.
CHUNK_BYTES = 1 << 20
# Maximum number of chunks waiting to be hashed, which bounds the memory of copies from a GPU.
CHUNKS_AHEAD = 32
# By default the system starts to write to disk when a tenth of the memory is dirty, or at the final fsync.
FLUSH_BYTES = 32 << 20
REMOVING_THREADS = 16


class StorageError(UserError):
    """Raised if the storage of checkpoints fails: full, gone, unreadable. The message is one sentence, as for every
    user error."""


class DamagedError(StorageError):
    """Raised if checkpoint data differ from what was written. Not raised for a read error, after which the data may be
    intact."""


class UnreadableError(StorageError):
    """Raised if a checkpoint cannot be read at present: failing file system, missing permission or mount."""


class NotSavedError(StorageError):
    """Raised if the storage keeps failing, or is full, while a checkpoint is written. The run can continue and save a
    later step."""


class HashedWriter:
    """New checkpoint file that is written, hashed and flushed to disk concurrently, in three threads."""

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
            self._flush_if_due()
            if len(self._hashed) > CHUNKS_AHEAD:
                self._hashed.popleft().result()

    def _flush_if_due(self) -> None:
        if self.size < self._flush_at or (self._flushed is not None and not self._flushed.done()):
            return
        if self._flushed is not None:
            self._flushed.result()  # the system reports a disk error to one fsync only, so it must be passed on
        self._flushed = self._flushing.submit(os.fdatasync, self._file.fileno())
        self._flush_at = self.size + FLUSH_BYTES

    def finish(self) -> str:
        """Sync the checkpoint file to disk; return its sha256."""
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
        # A full disk was already reported by the failed write, and must not be reported again by the flush in `close`.
        with contextlib.suppress(OSError):
            self._file.close()


class RetriedFile:
    """Checkpoint file for reading. Reads are retried, and the file is reopened, while its file system fails.

    Raises `FileNotFoundError`, and `UnreadableError` for other permanent errors.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None

    def size(self) -> int:
        """Return the size of the opened file. Network file systems would answer a query by path from a cache."""
        return self._try_call(lambda descriptor: os.fstat(descriptor).st_size)

    def read_into(self, target: memoryview, position: int) -> int:
        """Read bytes from `position` into `target`; return their number, fewer than requested only at the end of the
        file."""
        done = 0
        while done < len(target):
            count = self._try_call(partial(_read_at, target=target[done:], position=position + done))
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

    def _try_call(self, call: Callable[[int], T]) -> T:
        def attempt() -> T:
            try:
                if self._file is None:
                    self._file = FileIO(regular_file(self.path))  # rejects a pipe, which would block
                return call(self._file.fileno())
            except OSError:
                self.close()  # a stale handle stays stale, so the next attempt reopens the file
                raise

        return _read_with_retries(self.path, attempt)


def _read_at(descriptor: int, *, target: memoryview, position: int) -> int:
    return os.preadv(descriptor, [target], position)


def _read_with_retries(path: Path, call: Callable[[], T]) -> T:
    """Return the result of `call`, which reads `path`, retrying on failures. Raises the same errors as
    `RetriedFile`."""

    def refuse(error: Exception) -> None:
        if not isinstance(error, OSError) or isinstance(error, FileNotFoundError | NotADirectoryError):
            raise error
        if isinstance(error, PermissionError) or error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise UnreadableError(f"{path} cannot be read ({error.strerror}); {NOTHING_LOST}") from error

    try:
        return retry_call(call, target=str(path), retry=RETRY, refuse=refuse, remedy=NOTHING_LOST)
    except OutageError as error:
        raise UnreadableError(str(error)) from None


NOTHING_LOST = (
    "no data was lost or changed. Make it readable (check its disk, mount or server, and your permissions), and start "
    "again."
)


def list_names(folder: Path) -> list[str]:
    """Return the file names in a folder; empty if the folder does not exist."""
    try:
        return _read_with_retries(folder, lambda: os.listdir(folder))
    except FileNotFoundError:
        if folder.is_symlink():
            target = os.readlink(folder)
            raise UnreadableError(f"{folder} is a link to {target}, which does not exist; {NOTHING_LOST}") from None
        return []
    except NotADirectoryError:
        return []  # a file has this name; creating the folder will report it


def path_exists(path: Path) -> bool:
    """Whether a path exists. Unlike `Path.exists`, raises an error if the file system fails."""
    try:
        _read_with_retries(path, lambda: os.stat(path))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def read_small_file(path: Path) -> bytes:
    """Return the content of a small file, retrying on failures."""
    return _read_with_retries(path, lambda: regular_file(path).read_bytes())


def hash_file(path: Path) -> str:
    with RetriedFile(path) as file:
        return file.sha256()


def free_bytes(folder: Path) -> int:
    """Return the free bytes for this user on the file system of `folder`."""
    return shutil.disk_usage(folder).free


def remove_tree(folder: Path) -> None:
    """Remove a folder tree, even if other processes remove it or write to it at the same time."""

    def remove(path: Path) -> None:
        with contextlib.suppress(OSError):
            path.unlink()

    # One after the other, the files of thousands of ranks take a minute on a network disk. A link is not followed.
    if not folder.is_symlink():
        with contextlib.suppress(OSError), ThreadPoolExecutor(REMOVING_THREADS) as threads:
            list(threads.map(remove, folder.iterdir()))
    for _ in range(3):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return


@contextlib.contextmanager
def storage_errors(action: str, folder: Path) -> Iterator[None]:
    """Convert an `OSError` of `action` ("write a file") in `folder` to a `StorageError` with a remedy."""
    try:
        yield
    except OSError as error:
        path = error.filename or folder
        raise StorageError(f"cannot {action}: {path}: {error.strerror or error}") from error


def write_with_retries(action: str, folder: Path, work: Callable[[], T]) -> T:
    """Return the result of `work`, which writes a checkpoint and is retried while the storage fails, so it must be
    repeatable. `action` describes it.

    Raises `NotSavedError` if the storage keeps failing or is full, and `StorageError` like `storage_errors` for other
    permanent errors.
    """

    def refuse(error: Exception) -> None:
        if not isinstance(error, OSError) or error.errno in NO_RETRY:
            raise error

    with storage_errors(action, folder):
        try:
            remedy = "check its disk or server."
            return retry_call(work, target=str(folder), retry=WRITE_RETRY, refuse=refuse, remedy=remedy)
        except OutageError as error:
            raise NotSavedError(f"cannot {action}: {error}") from error
        except OSError as error:
            if error.errno not in FULL_DISK:
                raise
            problem = f"{describe_full_disk(error, folder)}, or move the run folder to another disk"
            raise NotSavedError(f"cannot {action}: {problem}; earlier checkpoints are intact.") from error


def human_bytes(count: float) -> str:
    """Format a number of bytes: `1234567` -> `1.2 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
