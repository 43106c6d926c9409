"""The first half of a build: spans of files read and cleaned into parts, each a file of documents and tables beside it.

A part depends on its spans and the steps alone, so any worker may make it, at any time, and again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from data_pipeline.build.work import key_of
from data_pipeline.clean.steps import Step, run_steps
from data_pipeline.document import Document, Dropped
from data_pipeline.sources.files import InputFile
from data_pipeline.sources.readers import OnError, read

COLUMNS = np.dtype([("digest", "<u8", 2), ("size", "<i8"), ("offset", "<i8")])
"""BLAKE2b of the text, 128 bits; its bytes in UTF-8; where the document's line starts in the part's file."""


@dataclass(frozen=True)
class PartJob:
    """What a worker needs to make a part."""

    folder: str
    """Where to write it, under a name made of what is in it."""
    files: tuple[InputFile, ...]
    steps: tuple[Step, ...]
    on_error: OnError
    inputs: tuple[tuple[str, str], ...] = ()
    """Other files that steps read: path, sha256."""


@dataclass
class Part:
    """A finished part: documents 0 to n - 1 in the order they were read."""

    stem: str
    """Path of its files without their suffixes."""
    documents: int
    dropped: Dropped

    @cached_property
    def _columns(self) -> np.ndarray:
        return np.load(f"{self.stem}.columns.npy", mmap_mode="r" if self.documents else None)

    def __getstate__(self) -> dict:
        return {"stem": self.stem, "documents": self.documents, "dropped": self.dropped}

    @property
    def digests(self) -> np.ndarray:
        """uint64 [n, 2]"""
        return self._columns["digest"]

    @property
    def sizes(self) -> np.ndarray:
        """int64 [n]"""
        return self._columns["size"]


def make_part(job: PartJob) -> Part:
    """Read, clean and write one part."""
    dropped = Dropped()
    documents = (document for file in job.files for document in read(file, dropped, job.on_error))
    stem = str(Path(job.folder, key_of(make_part, job)))
    return Part(stem, write_documents(stem, run_steps(job.steps, documents, dropped)), dropped)


def write_documents(stem: str, documents: Iterable[Document]) -> int:
    """Write the files of a part; returns how many documents it has."""
    rows, at = [], 0
    part = Path(f"{stem}.{os.getpid()}.part")
    with part.open("wb") as file:
        for document in documents:
            text = document.text.encode()
            rows.append((np.frombuffer(hashlib.blake2b(text, digest_size=16).digest(), "<u8"), len(text), at))
            at += file.write(json.dumps(asdict(document), ensure_ascii=False).encode() + b"\n")
    part.replace(f"{stem}.jsonl")
    with part.open("wb") as file:
        np.save(file, np.array(rows, dtype=COLUMNS))
    part.replace(f"{stem}.columns.npy")
    return len(rows)


def read_documents(stem: str, rows: np.ndarray | None = None) -> Iterator[Document]:
    """The documents of a part in these rows (rising), or all."""
    with open(f"{stem}.jsonl", "rb") as file:
        if rows is None:
            yield from (Document(**json.loads(line)) for line in file)
            return
        for offset in np.load(f"{stem}.columns.npy", mmap_mode="r")["offset"][rows].tolist():
            file.seek(offset)
            yield Document(**json.loads(file.readline()))
