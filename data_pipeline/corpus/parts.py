"""First half of a build: read and clean spans of files into parts, each a file of documents with sketches.

A part depends only on its spans and steps, so any worker can make it at any time, or make it again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from data_pipeline.clean import CleaningStep, run_steps
from data_pipeline.clean.step import step_input_files
from data_pipeline.corpus.work import JobRunner, job_key
from data_pipeline.deduplicate import Deduplicate, write_part
from data_pipeline.deduplicate.tables import load_table
from data_pipeline.document import DropCounts
from data_pipeline.recipe import MAX_SECONDS, Recipe
from data_pipeline.sources import InputFile, OnError, Span, partition_files, read_span
from data_pipeline.time_limit import apply_time_limit
from megaptm.errors import UserError
from megaptm.storage import regular_file

PART_BYTES = 4 << 20
"""Input bytes of a part: small enough to balance workers, large enough to make scheduling overhead negligible."""
MAX_PARTS = 4096
"""Maximum number of parts, which bounds the files that later stages open. Larger inputs have larger parts."""


@dataclass(frozen=True)
class PartJob:
    """Job that reads and cleans one part of a corpus."""

    folder: str
    """Folder for the part of a corpus build. The file name is derived from the job."""
    spans: tuple[Span, ...]
    steps: tuple[CleaningStep, ...]
    on_error: OnError
    deduplicate: Deduplicate
    inputs: tuple[tuple[str, str], ...] = ()
    """Other files that cleaning steps read, as (path, sha256)."""
    max_seconds: int = MAX_SECONDS

    @property
    def stem(self) -> str:
        return str(Path(self.folder, job_key(make_part, self)))


@dataclass
class Part:
    """Finished part of a corpus build: documents 0 to n - 1 in input order. See `deduplicate` for its files."""

    stem: str
    """Path of the files of the part, without suffix."""
    documents: int
    dropped: DropCounts

    @property
    def digests(self) -> np.ndarray:
        """128-bit hashes of the texts of the part, uint64 [n, 2]."""
        return load_table(f"{self.stem}.columns.npy")["digest"]

    @property
    def sizes(self) -> np.ndarray:
        """Bytes of each text of the part, int64 [n]."""
        return load_table(f"{self.stem}.columns.npy")["size"]


def make_part(job: PartJob) -> Part:
    """Read, clean and write one part of a corpus."""
    dropped = DropCounts()
    documents = (document for span in job.spans for document in read_span(span, dropped, job.on_error))
    with apply_time_limit(job.max_seconds, Path(job.folder, "slow")):
        documents_written = write_part(
            job.stem, run_steps(job.steps, documents, dropped, job.on_error), job.deduplicate
        )
    return Part(job.stem, documents_written, dropped)


def read_parts(recipe: Recipe, files: Sequence[InputFile], work: JobRunner) -> tuple[list[Part], DropCounts]:
    """Read and clean all source files of a corpus into parts."""
    folder = work.folder / "parts"
    folder.mkdir(parents=True, exist_ok=True)
    size = max(PART_BYTES, sum(file.size for file in files) // MAX_PARTS)
    inputs = hash_files(path for step in recipe.steps for path in step_input_files(step))
    sketches = recipe.deduplicate.for_sketches
    jobs = [
        PartJob(str(folder), spans, recipe.steps, recipe.on_error, sketches, inputs, recipe.max_seconds)
        for spans in partition_files(files, size)
    ]
    results = work.run("read and clean", make_part, jobs)
    # The path is taken from the job and not from the result, which may be a stored one.
    parts = [replace(part, stem=job.stem) for part, job in zip(results, jobs, strict=True)]
    dropped = DropCounts()
    for part in parts:
        dropped.merge(part.dropped)
    return parts, dropped


def hash_files(paths: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Hash files that a corpus build reads: (path, sha256) of each."""
    return tuple((path, _hash_file(path)) for path in paths)


def _hash_file(path: str) -> str:
    try:
        with regular_file(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(
            f"{path}, an input of the recipe, cannot be read ({error.strerror}): correct the path."
        ) from None
