"""File operations for local paths and URLs."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from megaptm.errors import FULL_DISK, UserError, describe_path_error, shown
from megaptm.storage.atomic_file import AtomicFile
from megaptm.storage.remote import CHUNK, Remote
from megaptm.storage.retry import RetryPolicy

RETRY = RetryPolicy()
LARGEST = 256 << 20
"""Maximum bytes of a manifest or a tokenizer file. The largest vocabularies take 40 MB."""


def is_remote(place: str | os.PathLike[str]) -> bool:
    """Whether a location is a URL (`s3://...`) and not a local path."""
    return "://" in str(place) and not str(place).startswith("file://")


def local_path(place: str | os.PathLike[str]) -> Path:
    return Path(str(place).removeprefix("file://")).expanduser()


def plain_file(name: str | os.PathLike[str]) -> Path:
    """Return the path of a regular file named by a config or user.

    Raises `OSError` for a missing file, a folder, a pipe (which would block) or a device (which may have no end).
    """
    try:
        path = Path(name).expanduser()
        mode = path.stat().st_mode
    except (ValueError, RuntimeError):  # a name with NUL, or the home of an unknown user
        raise FileNotFoundError(errno.ENOENT, "No file has such a name", shown(str(name))) from None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.ENXIO, "Not a regular file", str(path))
    return path


def writable_path(name: str | os.PathLike[str], option: str) -> Path:
    """Return the path of a file or folder to be written; raise `UserError` with the option before any computation if
    that is not possible. Nothing is created."""
    try:
        path = Path(name).expanduser().absolute()
        os.fsencode(path)
        with tempfile.TemporaryFile(dir=next(one for one in path.parents if one.exists())):
            return path
    except OSError as error:
        if error.errno in FULL_DISK:
            raise  # reported with its own message
        why = describe_path_error(error, name)
    except (ValueError, RuntimeError) as error:  # a name that is not UTF-8, or the home of an unknown user
        why = str(error)
    raise UserError(f"{option} ({name}) cannot be written ({why}): choose another place.")


def join(place: str | os.PathLike[str], *names: str) -> str:
    """Return the path or URL of a file in a folder."""
    return "/".join([str(place).rstrip("/"), *names])


def exists(place: str, retry: RetryPolicy = RETRY) -> bool:
    return Remote(place, retry).exists() if is_remote(place) else local_path(place).exists()


def size_of(place: str, retry: RetryPolicy = RETRY) -> int:
    """Return the bytes of a file."""
    return Remote(place, retry).size() if is_remote(place) else _present(place).stat().st_size


def read(place: str, retry: RetryPolicy = RETRY) -> bytes:
    """Read a small file."""
    return Remote(place, retry).read() if is_remote(place) else _present(place).read_bytes()


def refuse_large(place: str, size: int) -> None:
    """Raise `UserError` if a metadata file is implausibly large."""
    if size > LARGEST:
        raise UserError(
            f"{place} has {size:,} bytes, more than the {LARGEST:,} that such a file may have: check the address."
        )


def listed(place: str, retry: RetryPolicy = RETRY) -> dict[str, int]:
    """Return name -> bytes of the files in a folder, sorted; empty if it does not exist."""
    if is_remote(place):
        return dict(sorted(Remote(place, retry).listed().items()))
    folder = local_path(place)
    files = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    return {path.name: path.stat().st_size for path in files}


def remove(place: str, retry: RetryPolicy = RETRY) -> None:
    """Remove a file if it exists."""
    Remote(place, retry).remove() if is_remote(place) else local_path(place).unlink(missing_ok=True)


def download(place: str, path: Path, *, size: int | None = None, retry: RetryPolicy = RETRY) -> str:
    """Copy a file to `path` atomically; return its sha256. `size` is its expected size, if known."""
    found = size_of(place, retry)
    if size is not None and found != size:
        raise UserError(f"{place} has {found:,} bytes where {size:,} are expected: copy it there again.")
    chunks = Remote(place, retry).chunks(found) if is_remote(place) else _local_chunks(_present(place))
    digest = hashlib.sha256()
    path.parent.mkdir(parents=True, exist_ok=True)
    with AtomicFile(path) as part, part.open("wb") as file:
        for chunk in chunks:
            file.write(chunk)
            digest.update(chunk)
    return digest.hexdigest()


def upload(path: Path, place: str, *, sha256: str | None = None, retry: RetryPolicy = RETRY) -> None:
    """Copy a local file to `place` atomically and compare sizes; with `sha256`, also read it back.

    A copy that differs is sent again twice, and then raises `UserError`.
    """
    for _ in range(3):
        if is_remote(place):
            Remote(place, retry).write(path)
        else:
            local_path(place).parent.mkdir(parents=True, exist_ok=True)
            with AtomicFile(local_path(place)) as part:
                shutil.copyfile(path, part)
        if size_of(place, retry) == path.stat().st_size and (sha256 is None or hash_of(place, retry) == sha256):
            return
    raise UserError(
        f"{place} is not what was sent there, three times in a row: its server or network cannot be trusted."
    )


def hash_of(place: str, retry: RetryPolicy = RETRY) -> str:
    """Return the sha256 of a file."""
    remote = Remote(place, retry)
    chunks = remote.chunks(remote.size()) if is_remote(place) else _local_chunks(_present(place))
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def _local_chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk


def _present(place: str) -> Path:
    path = local_path(place)
    if not path.is_file():
        raise UserError(f"{path} does not exist: check the path.")
    return path
