"""The first half of a build: files read and cleaned into parts, each a file of documents and a table of where they are.

A part depends on its input files alone, so any worker may make it, at any time, and again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from data_pipeline.clean.steps import Step, run_steps
from data_pipeline.document import Document, Dropped
from data_pipeline.sources.files import InputFile
from data_pipeline.sources.readers import OnError, read


@dataclass(frozen=True)
class PartJob:
    """What a worker needs to make a part."""

    path: str
    files: tuple[InputFile, ...]
    steps: tuple[Step, ...]
    on_error: OnError


@dataclass
class Part:
    """A finished part: documents 0 to n - 1 in the order they were read."""

    path: str
    digests: np.ndarray
    """uint64 [n, 2]: BLAKE2b of the text, 128 bits."""
    sizes: np.ndarray
    """int64 [n]: bytes of the text in UTF-8."""
    offsets: np.ndarray
    """int64 [n]: where the document's line starts in the file."""
    dropped: Dropped


def make_part(job: PartJob) -> Part:
    """Read, clean and write one part."""
    dropped = Dropped()
    documents = (document for file in job.files for document in read(file, dropped, job.on_error))
    digests, sizes, offsets, at = bytearray(), [], [], 0
    part = Path(f"{job.path}.{os.getpid()}.part")
    with part.open("wb") as file:
        for document in run_steps(job.steps, documents, dropped):
            text = document.text.encode()
            digests += hashlib.blake2b(text, digest_size=16).digest()
            sizes.append(len(text))
            offsets.append(at)
            at += file.write(json.dumps(asdict(document), ensure_ascii=False).encode() + b"\n")
    part.replace(job.path)
    table = np.frombuffer(bytes(digests), dtype="<u8").reshape(-1, 2)
    return Part(job.path, table, np.array(sizes, dtype=np.int64), np.array(offsets, dtype=np.int64), dropped)


def read_documents(path: str, offsets: Sequence[int] | np.ndarray) -> Iterator[Document]:
    """The documents of a part that start at these offsets."""
    with open(path, "rb") as file:
        for offset in offsets:
            file.seek(int(offset))
            yield Document(**json.loads(file.readline()))
