"""Files of a corpus that have deterministic bytes: `.npy` arrays and tar headers."""

from __future__ import annotations

import errno
import io
import math
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import IO, Self

import numpy as np

from megaptm.errors import UserError
from megaptm.storage import regular_file


def npy_bytes(array: np.ndarray) -> bytes:
    """Return an array as the bytes of a `.npy` file, format version 1.0."""
    array = np.asarray(array, order="C")
    return _npy_header(array.dtype, array.shape) + array.tobytes()


@lru_cache(4096)
def _npy_header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """Return the header of a `.npy` file. Cached, because making it takes longer than writing a document, and many
    documents have equal length."""
    buffer = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(buffer, {"descr": descr, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def open_array(path: str | os.PathLike[str], dtype: np.dtype, inner: tuple[int, ...] = ()) -> np.ndarray:
    """Memory-map a `.npy` file: [rows, *inner] of `dtype`, as `npy_bytes` wrote it.

    Any other file is rejected. The number of rows follows from the file's size, and the header must be exactly the one
    for this number: numpy would parse any header as Python and map what it describes. Raises `ValueError` and
    `OSError`.
    """
    with regular_file(path).open("rb") as file:
        rows, at = _parse_header(file.read(MAX_HEADER_BYTES), os.fstat(file.fileno()).st_size, dtype, inner)
        if not rows:  # an empty file cannot be mapped
            return np.zeros((0, *inner), dtype)
        return np.memmap(file, dtype, "r", at, (rows, *inner))


def array_from_bytes(content: bytes, dtype: np.dtype, inner: tuple[int, ...] = ()) -> np.ndarray:
    """Return a read-only array from the bytes of a `.npy` file: [rows, *inner] of `dtype`. Raises `ValueError` unless
    `npy_bytes` wrote them."""
    rows, at = _parse_header(content[:MAX_HEADER_BYTES], len(content), dtype, inner)
    return np.frombuffer(content, dtype, rows * math.prod(inner), at).reshape(rows, *inner)


MAX_HEADER_BYTES = 1024
"""Number of bytes that contain the complete header of any array written by `npy_bytes`."""


def _parse_header(start: bytes, size: int, dtype: np.dtype, inner: tuple[int, ...]) -> tuple[int, int]:
    """Return the number of rows in a `.npy` file of this size, and the offset of the data. Raises `ValueError` for a
    wrong header."""
    at = 10 + int.from_bytes(start[8:10], "little")
    rows, remainder = divmod(size - at, dtype.itemsize * math.prod(inner))
    if rows < 0 or remainder or start[:at] != _npy_header(dtype, (rows, *inner)):
        raise ValueError(f"it is not an array of {dtype}")
    return rows, at


MAX_TAR_NAME_BYTES = 100
"""Maximum bytes of a member's name in a plain tar header."""


def tar_header(name: str, size: int) -> bytes:
    """Return the tar header of a corpus file with mtime, uid and gid 0 and no owner, so that the bytes depend only on
    the content.

    The bytes equal `tarfile`'s, in a tenth of the time: only name, size and checksum vary.
    """
    encoded = name.encode()
    if len(encoded) > MAX_TAR_NAME_BYTES or size >= 8**11:
        header = tarfile.TarInfo(name)
        header.size = size
        return header.tobuf(tarfile.USTAR_FORMAT)
    digits = b"%011o" % size
    checksum = b"%06o" % (_BLANK_SUM + sum(encoded) + sum(digits))
    return (
        encoded.ljust(MAX_TAR_NAME_BYTES, b"\0") + _BLANK[100:124] + digits + _BLANK[135:148] + checksum + _BLANK[154:]
    )


EXTENDED_HEADERS = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)
"""Types of headers with names and attributes of the next member."""
MAX_EXTENDED_BYTES = 64 << 20


def open_tar(file: str | os.PathLike[str] | IO[bytes]) -> tarfile.TarFile:
    """Open an untrusted, uncompressed tar for reading, by path or as a stream. Raises `tarfile.TarError` if it is
    invalid."""
    with _tar_errors():
        if isinstance(file, str | os.PathLike):
            return tarfile.open(file, "r:", tarinfo=_Member)
        return tarfile.open(fileobj=file, mode="r|", tarinfo=_Member)


class _Member(tarfile.TarInfo):
    """Member of an untrusted tar. tarfile itself ends an archive at an invalid header, as if no member followed."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            member = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if buf.count(0) == len(buf):  # the end of the archive
                raise
            raise tarfile.ReadError(f"invalid header: {error}") from None
        if member.type in EXTENDED_HEADERS and member.size > MAX_EXTENDED_BYTES:  # tarfile reads them into memory
            raise tarfile.ReadError(f"invalid header: names of {member.size:,} bytes")
        return member


class TrailingDataError(tarfile.ReadError):
    """Error for data after the end of a tar. All members before the end are complete."""


def tar_members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members of an untrusted tar. Raises `tarfile.TarError` for an invalid header, and `TrailingDataError`
    after the last member if data follow the end of the archive."""
    while True:
        with _tar_errors():
            member = tar.next()
        if member is None:
            break
        if member.size < 0:  # a negative size would repeat the same member forever
            raise tarfile.ReadError(f"{member.name} has {member.size} bytes")
        yield member
    assert tar.fileobj is not None
    while data := tar.fileobj.read(1 << 20):
        if data.count(0) != len(data):
            raise TrailingDataError("data follow its end: it may be several archives in one file")


@contextmanager
def _tar_errors() -> Iterator[None]:
    """Convert the various exceptions that `tarfile` raises for invalid tar headers to `tarfile.ReadError`.

    Other errors of the underlying stream, such as a failing server, are re-raised, and so is too little memory.
    """
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        if error.errno != errno.EINVAL:  # EINVAL is a seek to an invalid offset
            raise
        raise tarfile.ReadError(f"invalid header: {error}") from None
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise tarfile.ReadError(f"invalid header: {error}") from None


_BLANK = tarfile.TarInfo("").tobuf(tarfile.USTAR_FORMAT)
_BLANK_SUM = int(_BLANK[148:154], 8) - sum(_BLANK[124:135])
