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

from megaptm.errors import FULL_DISK, UserError, describe_path_error, quote_value
from megaptm.storage.atomic_file import AtomicFile
from megaptm.storage.remote import CHUNK_BYTES, RemoteFile
from megaptm.storage.retry import RetryPolicy

RETRY = RetryPolicy()
MAX_METADATA_BYTES = 256 << 20
"""Maximum bytes of a manifest or a tokenizer file. The largest vocabularies take 40 MB."""


def is_remote(location: str | os.PathLike[str]) -> bool:
    """Whether a location is a URL (`s3://...`) and not a local path."""
    return "://" in str(location) and not str(location).startswith("file://")


def local_path(location: str | os.PathLike[str]) -> Path:
    return expand_home(str(location).removeprefix("file://"))


def expand_home(path: str | os.PathLike[str]) -> Path:
    """Return a path whose leading `~` is replaced by the home folder. Raise `UserError` if there is none, as for the
    users of many containers and services."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UserError(f"{path}: this user has no home folder: set HOME, or give a path without `~`.") from None


def read_text_file(
    path: str | os.PathLike[str],
    *,
    name: str = "",
    remedy: str = "correct the name, or convert the file to UTF-8",
) -> str:
    """Read a text file of the user. Raise `UserError`, about `name` or the path, if it is absent or not UTF-8."""
    try:
        return regular_file(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{name or path} cannot be read ({error}): {remedy}.") from None


def read_table_lines(path: str | os.PathLike[str], **options: str) -> list[tuple[int, str]]:
    """Return the lines of a text file of the user with their numbers, from 1, without blank lines and lines that start
    with #. `options` are passed to `read_text_file`."""
    lines = enumerate(read_text_file(path, **options).split("\n"), 1)
    return [(number, line) for number, line in lines if line.strip() and not line.startswith("#")]


def regular_file(name: str | os.PathLike[str]) -> Path:
    """Return the path of a regular file named by a config or user.

    Raises `OSError` for a missing file, a folder, a pipe (which would block) or a device (which may have no end).
    """
    try:
        path = Path(name).expanduser()
        mode = path.stat().st_mode
    except (ValueError, RuntimeError):  # a name with NUL, or the home of an unknown user
        raise FileNotFoundError(errno.ENOENT, "Invalid file name", quote_value(str(name))) from None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.ENXIO, "Not a regular file", str(path))
    return path


def hash_regular_file(name: str | os.PathLike[str]) -> str:
    """Return the sha256 of a regular file named by a config or user. Raises `OSError` like `regular_file`."""
    with regular_file(name).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def writable_path(name: str | os.PathLike[str], option: str) -> Path:
    """Return the path of a file or folder to be written; raise `UserError` with the option before any computation if
    that is not possible. Nothing is created."""
    try:
        path = Path(name).expanduser().absolute()
        os.fsencode(path)
        with tempfile.TemporaryFile(dir=next(parent for parent in path.parents if parent.exists())):
            return path
    except OSError as error:
        if error.errno in FULL_DISK:
            raise  # reported with its own message
        why = describe_path_error(error, name)
    except (ValueError, RuntimeError) as error:  # a name that is not UTF-8, or the home of an unknown user
        why = str(error)
    raise UserError(f"{option} ({name}) cannot be written ({why}): choose another path.")


def join_path(folder: str | os.PathLike[str], *names: str) -> str:
    """Return the path or URL of a file in a local or remote folder."""
    return "/".join([str(folder).rstrip("/"), *names])


def exists(location: str, retry: RetryPolicy = RETRY) -> bool:
    return RemoteFile(location, retry).exists() if is_remote(location) else local_path(location).exists()


def file_size(location: str, retry: RetryPolicy = RETRY) -> int:
    """Return the bytes of a local or remote file."""
    return RemoteFile(location, retry).size() if is_remote(location) else _existing_file(location).stat().st_size


def read_file(location: str, retry: RetryPolicy = RETRY) -> bytes:
    """Read a small local or remote file."""
    return RemoteFile(location, retry).read() if is_remote(location) else _existing_file(location).read_bytes()


def refuse_large_file(location: str, size: int) -> None:
    """Raise `UserError` if a metadata file is implausibly large."""
    if size > MAX_METADATA_BYTES:
        raise UserError(
            f"{location} has {size:,} bytes, more than the maximum of {MAX_METADATA_BYTES:,} for such a file: "
            "check the path or URL."
        )


def list_files(location: str, retry: RetryPolicy = RETRY) -> dict[str, int]:
    """List a local or remote folder: return name -> bytes of its files, sorted; empty if it does not exist."""
    if is_remote(location):
        return dict(sorted(RemoteFile(location, retry).list_files().items()))
    folder = local_path(location)
    files = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    return {path.name: path.stat().st_size for path in files}


def remove_file(location: str, retry: RetryPolicy = RETRY) -> None:
    """Remove a local or remote file if it exists."""
    RemoteFile(location, retry).remove() if is_remote(location) else local_path(location).unlink(missing_ok=True)


def download(source: str, path: Path, *, size: int | None = None, retry: RetryPolicy = RETRY) -> str:
    """Copy a local or remote file to `path` atomically; return its sha256. `size` is its expected size, if known."""
    actual_size = file_size(source, retry)
    if size is not None and actual_size != size:
        raise UserError(f"{source} has {actual_size:,} bytes, expected {size:,}: copy the file there again.")
    chunks = (
        RemoteFile(source, retry).chunks(actual_size) if is_remote(source) else _local_chunks(_existing_file(source))
    )
    digest = hashlib.sha256()
    path.parent.mkdir(parents=True, exist_ok=True)
    with AtomicFile(path) as part, part.open("wb") as file:
        for chunk in chunks:
            file.write(chunk)
            digest.update(chunk)
    return digest.hexdigest()


def upload(path: Path, target: str, *, sha256: str | None = None, retry: RetryPolicy = RETRY) -> None:
    """Copy a local file to the path or URL `target` atomically and compare sizes; with `sha256`, also read it back.

    A copy that differs is sent again twice, and then raises `UserError`.
    """
    for _ in range(3):
        if is_remote(target):
            RemoteFile(target, retry).write(path)
        else:
            local_path(target).parent.mkdir(parents=True, exist_ok=True)
            with AtomicFile(local_path(target)) as part:
                shutil.copyfile(path, part)
        if file_size(target, retry) == path.stat().st_size and (sha256 is None or file_sha256(target, retry) == sha256):
            return
    raise UserError(f"{target} differs from the uploaded file after three uploads: check its server and network.")


def file_sha256(location: str, retry: RetryPolicy = RETRY) -> str:
    """Return the sha256 of a local or remote file."""
    remote = RemoteFile(location, retry)
    chunks = remote.chunks(remote.size()) if is_remote(location) else _local_chunks(_existing_file(location))
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def _local_chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def _existing_file(location: str) -> Path:
    path = local_path(location)
    if not path.is_file():
        raise UserError(f"{path} does not exist: check the path.")
    return path
