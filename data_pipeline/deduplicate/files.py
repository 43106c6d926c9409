"""Files of a part: documents as JSON lines, a table of their offsets, and sketches.

Files are written atomically, the documents last. So a part is complete if its `.jsonl` exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np

from data_pipeline.deduplicate.json_lines import document_from_line, document_to_line
from data_pipeline.deduplicate.options import Deduplicate
from data_pipeline.deduplicate.sketch import Sketcher
from data_pipeline.deduplicate.tables import load_table
from data_pipeline.document import Document
from megaptm.storage import AtomicFile


class PartFile(Protocol):
    """Interface of the files of a part: documents written by one job."""

    @property
    def stem(self) -> str:
        """Return the path of the part's files without suffix. It must change with the documents and sketches."""

    @property
    def documents(self) -> int: ...


def write_part(stem: str, documents: Iterable[Document], options: Deduplicate) -> int:
    """Write documents as a part, with the sketches that `options` needs. Return their number."""
    with AtomicFile(f"{stem}.jsonl") as part, part.open("wb") as file:
        sketcher, offset = Sketcher(stem, options), 0
        for document in documents:
            sketcher.add(document, offset)
            offset += file.write(document_to_line(document))
        documents_written = sketcher.close()
    return documents_written


def read_part(stem: str, rows: np.ndarray | None = None) -> Iterator[Document]:
    """Yield the documents of a part's file: those in the given rows, or all."""
    with open(f"{stem}.jsonl", "rb") as file:
        if rows is None:
            yield from map(document_from_line, file)
            return
        for offset in load_table(f"{stem}.columns.npy")["offset"][rows].tolist():
            file.seek(offset)
            yield document_from_line(file.readline())
