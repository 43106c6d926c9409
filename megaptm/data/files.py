"""The bytes of small files of a corpus: the same for the same content."""

from __future__ import annotations

import errno
import io
import math
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import IO

import numpy as np

from megaptm.errors import UserError
from megaptm.storage import plain_file


def npy_bytes(array: np.ndarray) -> bytes:
    """The bytes of a `.npy` file, format version 1.0."""
    array = np.asarray(array, order="C")
    return _npy_header(array.dtype, array.shape) + array.tobytes()


@lru_cache(4096)
def _npy_header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """Making it takes longer than writing the numbers of a document, and many documents are equally long."""
    buffer = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(buffer, {"descr": descr, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def open_array(path: str | os.PathLike[str], dtype: np.dtype, inner: tuple[int, ...] = ()) -> np.ndarray:
    """The array in a `.npy` file, mapped into memory: [rows, *inner] of `dtype`, as `npy_bytes` wrote it.

    Nothing else is read. How many rows there are follows from the file's size, and its header must be the one of so
    many: numpy would parse any header as Python, and map what it says. Raises `ValueError` and `OSError`.
    """
    with plain_file(path).open("rb") as file:
        rows, at = _rows(file.read(HEADER), os.fstat(file.fileno()).st_size, dtype, inner)
        if not rows:  # nothing can be mapped
            return np.zeros((0, *inner), dtype)
        return np.memmap(file, dtype, "r", at, (rows, *inner))


def array_of(content: bytes, dtype: np.dtype, inner: tuple[int, ...] = ()) -> np.ndarray:
    """The array in the bytes of a `.npy` file, [rows, *inner] of `dtype`, read-only; raises `ValueError` where they are
    not what `npy_bytes` wrote."""
    rows, at = _rows(content[:HEADER], len(content), dtype, inner)
    return np.frombuffer(content, dtype, rows * math.prod(inner), at).reshape(rows, *inner)


HEADER = 1024
"""Bytes that hold the header of any array of ours."""


def _rows(begin: bytes, size: int, dtype: np.dtype, inner: tuple[int, ...]) -> tuple[int, int]:
    """Rows of an array in a file of this size, and its first byte, where the file begins as it must."""
    at = 10 + int.from_bytes(begin[8:10], "little")
    rows, rest = divmod(size - at, dtype.itemsize * math.prod(inner))
    if rows < 0 or rest or begin[:at] != _npy_header(dtype, (rows, *inner)):
        raise ValueError(f"it holds no array of {dtype}")
    return rows, at


TAR_NAME = 100
"""Bytes of a member's name that a plain header has room for."""


def tar_header(name: str, size: int) -> bytes:
    """The header of a file in a tar: mtime, uid, gid 0 and no owner, so that bytes depend on the content only.

    Byte for byte what `tarfile` makes, in a tenth of its time: only name, size and checksum differ from one to another.
    """
    encoded = name.encode()
    if len(encoded) > TAR_NAME or size >= 8**11:
        header = tarfile.TarInfo(name)
        header.size = size
        return header.tobuf(tarfile.USTAR_FORMAT)
    digits = b"%011o" % size
    checksum = b"%06o" % (_BLANK_SUM + sum(encoded) + sum(digits))
    return encoded.ljust(TAR_NAME, b"\0") + _BLANK[100:124] + digits + _BLANK[135:148] + checksum + _BLANK[154:]


def open_tar(file: str | os.PathLike[str] | IO[bytes]) -> tarfile.TarFile:
    """One that is not compressed, and that somebody else may have made, opened to be read: by its path, or as a stream;
    `tarfile.TarError` where it is none."""
    with _tar_errors():
        if isinstance(file, str | os.PathLike):
            return tarfile.open(file, "r:")
        return tarfile.open(fileobj=file, mode="r|")


def tar_members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """What is in a tar, one after another; `tarfile.TarError` where that cannot be told."""
    while True:
        with _tar_errors():
            member = tar.next()
        if member is None:
            return
        if member.size < 0:  # the next one would be this one, for ever
            raise tarfile.ReadError(f"{member.name} has {member.size} bytes")
        yield member


@contextmanager
def _tar_errors() -> Iterator[None]:
    """Of headers that are none `tarfile` raises more than its own. What a stream raises, of its server or of its
    compression, says nothing of headers."""
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        if error.errno != errno.EINVAL:  # of a seek to where no file reaches
            raise
        raise tarfile.ReadError(f"a header that is none: {error}") from None
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        raise tarfile.ReadError(f"a header that is none: {error}") from None


_BLANK = tarfile.TarInfo("").tobuf(tarfile.USTAR_FORMAT)
_BLANK_SUM = int(_BLANK[148:154], 8) - sum(_BLANK[124:135])
