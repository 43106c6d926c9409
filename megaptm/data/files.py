"""The bytes of small files of a corpus: the same for the same content."""

from __future__ import annotations

import io
import os
import tarfile
from functools import lru_cache
from threading import Lock

import numpy as np

_PARSING = Lock()


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


def open_array(path: str | os.PathLike[str], *, mapped: bool) -> np.ndarray:
    """The array in a `.npy` file; `mapped`: what is read of it is all that takes memory.

    One thread at a time: numpy parses its header as Python, which Python 3.11 does not reliably do in several at once.
    """
    with _PARSING:
        return np.load(path, mmap_mode="r" if mapped else None)


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


_BLANK = tarfile.TarInfo("").tobuf(tarfile.USTAR_FORMAT)
_BLANK_SUM = int(_BLANK[148:154], 8) - sum(_BLANK[124:135])
