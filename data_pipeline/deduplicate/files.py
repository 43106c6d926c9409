"""The files of a part: documents as JSON lines, a table of where they are, and sketches of them beside it.

Each appears under its name when it is complete, and the documents last: a part whose `.jsonl` is there is whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np

from data_pipeline.deduplicate.lines import from_line, to_line
from data_pipeline.deduplicate.options import Deduplicate
from data_pipeline.document import Document
from megaptm.storage import Appearing

COLUMNS = np.dtype([("digest", "<u8", 2), ("size", "<i8"), ("offset", "<i8")])
"""BLAKE2b of the text, 128 bits; its bytes in UTF-8; where the document's line starts in the part's file."""


class Part(Protocol):
    """Documents that a job wrote together."""

    @property
    def stem(self) -> str:
        """Path of its files without their suffixes; other documents or sketches have another stem."""

    @property
    def documents(self) -> int: ...


def write_part(stem: str, documents: Iterable[Document], options: Deduplicate) -> int:
    """Write documents as a part, with the sketches that finding what `options` names takes. Returns their number."""
    from data_pipeline.deduplicate.sketch import Sketcher

    with Appearing(f"{stem}.jsonl") as part, part.open("wb") as file:
        sketcher, offset = Sketcher(stem, options), 0
        for document in documents:
            sketcher.add(document, offset)
            offset += file.write(to_line(document))
        documents_written = sketcher.close()
    return documents_written


def read_part(stem: str, rows: np.ndarray | None = None) -> Iterator[Document]:
    """The documents of a part in these rows, or all."""
    with open(f"{stem}.jsonl", "rb") as file:
        if rows is None:
            yield from map(from_line, file)
            return
        for offset in load(f"{stem}.columns.npy")["offset"][rows].tolist():
            file.seek(offset)
            yield from_line(file.readline())


def save(path: str, array: np.ndarray) -> None:
    with Appearing(path) as part, part.open("wb") as file:
        np.save(file, array)


def load(path: str) -> np.ndarray:
    """An array that stays in its file: what is read of it is all that takes memory. An empty one has no file to map."""
    try:
        return np.load(path, mmap_mode="r")
    except ValueError:
        return np.load(path)


class Rows:
    """Rows written to an .npy file as they come; it has its name once it is closed."""

    HEADER = 128
    """Bytes that numpy's header takes, whatever the number of rows."""

    def __init__(self, path: str, dtype: str, width: int):
        self._dtype, self._width, self.count = dtype, width, 0
        self._appearing = Appearing(path)
        self._file = self._appearing.part.open("wb")
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
        self._appearing.keep()
