"""Tables of a part: arrays in .npy files, written atomically."""

from __future__ import annotations

import numpy as np

from megaptm.errors import UserError
from megaptm.storage import AtomicFile

COLUMNS = np.dtype([("digest", "<u8", 2), ("size", "<i8"), ("offset", "<i8")])
"""Columns of a document: 128-bit BLAKE2b of the text; its length in UTF-8 bytes; offset of the document's line in the
part's file."""


def save_table(path: str, array: np.ndarray) -> None:
    with AtomicFile(path) as part, part.open("wb") as file:
        np.save(file, array)


def load_table(path: str) -> np.ndarray:
    """Memory-map a table, so that only the accessed part takes memory. An empty table cannot be mapped and is read."""
    try:
        try:
            return np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError:
            return np.load(path, allow_pickle=False)
    except (ValueError, EOFError):
        raise UserError(f"{path} is damaged: run the build again, which rewrites it, and check its disk.") from None


class RowWriter:
    """Writer of an .npy file row by row. The file gets its name when it is closed."""

    HEADER = 128
    """Size in bytes of the header of numpy's .npy format, for any number of rows."""

    def __init__(self, path: str, dtype: str, width: int):
        self._dtype, self._width, self.count = dtype, width, 0
        self._atomic = AtomicFile(path)
        self._file = self._atomic.part.open("wb")
        self._file.write(bytes(self.HEADER))

    def add(self, rows: np.ndarray) -> None:
        """Add rows to the table's file: [n, width]."""
        self._file.write(np.ascontiguousarray(rows, self._dtype).data)
        self.count += len(rows)

    def close(self) -> None:
        shape = {"descr": self._dtype, "fortran_order": False, "shape": (self.count, self._width)}
        self._file.seek(0)
        np.lib.format.write_array_header_1_0(self._file, shape)
        assert self._file.tell() == self.HEADER
        self._file.close()
        self._atomic.commit()
