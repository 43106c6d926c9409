"""The first half of a build: spans of files read and cleaned into parts, each a file of documents, sketches beside it.

A part depends on its spans and the steps alone, so any worker may make it, at any time, and again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from data_pipeline.clean import CleaningStep, run_steps
from data_pipeline.clean.step import inputs_of
from data_pipeline.corpus.work import JobRunner, key_of
from data_pipeline.deduplicate import Deduplicate, write_part
from data_pipeline.deduplicate.tables import load
from data_pipeline.document import Dropped
from data_pipeline.recipe import MAX_SECONDS, Recipe
from data_pipeline.sources import InputFile, OnError, Span, deal, read
from data_pipeline.time_limit import limiting
from megaptm.errors import UserError
from megaptm.storage import plain_file

PART_BYTES = 4 << 20
"""Input of one part: small enough that workers finish together, large enough that handing it out costs nothing."""
MOST_PARTS = 4096
"""Larger inputs have larger parts, so that a stage that looks at all parts opens a bounded number of files."""


@dataclass(frozen=True)
class PartJob:
    """What a worker needs to make a part."""

    folder: str
    """Where to write it, under a name made of what is in it."""
    spans: tuple[Span, ...]
    steps: tuple[CleaningStep, ...]
    on_error: OnError
    deduplicate: Deduplicate
    inputs: tuple[tuple[str, str], ...] = ()
    """Other files that steps read: path, sha256."""
    max_seconds: int = MAX_SECONDS

    @property
    def stem(self) -> str:
        return str(Path(self.folder, key_of(make_part, self)))


@dataclass
class Part:
    """A finished part: documents 0 to n - 1 in the order they were read. See `deduplicate` for its files."""

    stem: str
    """Path of its files without their suffixes."""
    documents: int
    dropped: Dropped

    @property
    def digests(self) -> np.ndarray:
        """uint64 [n, 2]"""
        return load(f"{self.stem}.columns.npy")["digest"]

    @property
    def sizes(self) -> np.ndarray:
        """int64 [n]"""
        return load(f"{self.stem}.columns.npy")["size"]


def make_part(job: PartJob) -> Part:
    """Read, clean and write one part."""
    dropped = Dropped()
    documents = (document for span in job.spans for document in read(span, dropped, job.on_error))
    with limiting(job.max_seconds, Path(job.folder, "slow")):
        documents_written = write_part(
            job.stem, run_steps(job.steps, documents, dropped, job.on_error), job.deduplicate
        )
    return Part(job.stem, documents_written, dropped)


def read_parts(recipe: Recipe, files: Sequence[InputFile], work: JobRunner) -> tuple[list[Part], Dropped]:
    """Read and clean every file into parts."""
    folder = work.folder / "parts"
    folder.mkdir(parents=True, exist_ok=True)
    size = max(PART_BYTES, sum(file.size for file in files) // MOST_PARTS)
    inputs = hashes_of(path for step in recipe.steps for path in inputs_of(step))
    jobs = [
        PartJob(str(folder), spans, recipe.steps, recipe.on_error, recipe.deduplicate, inputs, recipe.max_seconds)
        for spans in deal(files, size)
    ]
    found = work.run("read and clean", make_part, jobs)
    # Where files are is the job's word; a result found in a folder is no place to learn a path from.
    parts = [replace(part, stem=job.stem) for part, job in zip(found, jobs, strict=True)]
    dropped = Dropped()
    for part in parts:
        dropped.merge(part.dropped)
    return parts, dropped


def hashes_of(paths: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Path and sha256 of each file."""
    return tuple((path, _hash(path)) for path in paths)


def _hash(path: str) -> str:
    try:
        with plain_file(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(
            f"{path}, which the recipe names, cannot be read ({error.strerror}): correct the path."
        ) from None
