"""Tables beside the documents of a part: arrays in .npy files, each under its name when it is complete."""

from __future__ import annotations

import numpy as np

from megaptm.errors import UserError
from megaptm.storage import AtomicFile

COLUMNS = np.dtype([("digest", "<u8", 2), ("size", "<i8"), ("offset", "<i8")])
"""BLAKE2b of the text, 128 bits; its bytes in UTF-8; where the document's line starts in the part's file."""


def save(path: str, array: np.ndarray) -> None:
    with AtomicFile(path) as part, part.open("wb") as file:
        np.save(file, array)


def load(path: str) -> np.ndarray:
    """An array that stays in its file: what is read of it is all that takes memory. An empty one has no file to map."""
    try:
        try:
            return np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError:
            return np.load(path, allow_pickle=False)
    except (ValueError, EOFError):
        raise UserError(
            f"{path} is damaged: start the build again, which makes it anew, and look at the disk it is on."
        ) from None


class Rows:
    """Rows written to an .npy file as they come; it has its name once it is closed."""

    HEADER = 128
    """Bytes that numpy's header takes, whatever the number of rows."""

    def __init__(self, path: str, dtype: str, width: int):
        self._dtype, self._width, self.count = dtype, width, 0
        self._atomic = AtomicFile(path)
        self._file = self._atomic.part.open("wb")
        self._file.write(bytes(self.HEADER))

    def add(self, rows: np.ndarray) -> None:
        """`rows`: [n, width]."""
        self._file.write(np.ascontiguousarray(rows, self._dtype).data)
        self.count += len(rows)

    def close(self) -> None:
        shape = {"descr": self._dtype, "fortran_order": False, "shape": (self.count, self._width)}
        self._file.seek(0)
        np.lib.format.write_array_header_1_0(self._file, shape)
        assert self._file.tell() == self.HEADER
        self._file.close()
        self._atomic.keep()
