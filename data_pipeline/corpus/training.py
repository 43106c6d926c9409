"""Train a tokenizer on a deterministic sample of the training split."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from data_pipeline.corpus.parts import Part
from data_pipeline.corpus.selection import Selection
from data_pipeline.corpus.work import JobRunner, job_key
from data_pipeline.deduplicate import read_part
from data_pipeline.recipe import TokenizerRecipe
from megaptm.tokenizers import KINDS, train_tokenizer_on_texts

# Bytes of training text. More text changes few pieces and takes longer. Unigram training is slow; `words` only counts.
TRAINING_BYTES = dict.fromkeys(KINDS, 20 << 20) | {"unigram": 4 << 20, "words": 200 << 20}


class TrainingText(Protocol):
    """Text to train a tokenizer on, which a worker can read: a frozen dataclass whose fields become part of the job's
    key."""

    def read(self) -> Iterator[str]:
        """Yield the texts to train a tokenizer on."""


@dataclass(frozen=True)
class DocumentSample:
    """Sample of the documents of a corpus build, to train a tokenizer on."""

    rows: tuple[tuple[str, np.ndarray], ...]
    """Documents of the sample: (stem, int64 rows) of each part."""

    @classmethod
    def from_selection(cls, selection: Selection, kind: str) -> DocumentSample:
        """Sample as much of the training split as this kind of tokenizer needs."""
        parts: Sequence[Part] = selection.parts  # type: ignore[assignment]
        rows_by_part = selection.sample("train", TRAINING_BYTES[kind])
        return cls(tuple((parts[number].stem, rows) for number, rows in rows_by_part))

    def read(self) -> Iterator[str]:
        return (document.text for stem, rows in self.rows for document in read_part(stem, rows))


@dataclass(frozen=True)
class TokenizerJob:
    """Job that trains one tokenizer."""

    folder: str
    """Folder for the tokenizer. The name is derived from the job."""
    recipe: TokenizerRecipe
    text: TrainingText

    @property
    def path(self) -> Path:
        return Path(self.folder, job_key(_train_tokenizer, self))


def train_tokenizer(recipe: TokenizerRecipe, text: TrainingText, work: JobRunner) -> Path:
    """Train the tokenizer of a corpus build, unless an earlier build has finished the same job; return its folder."""
    job = TokenizerJob(str(work.folder / "tokenizers"), recipe, text)
    work.run("tokenizer", _train_tokenizer, [job])
    return job.path


def _train_tokenizer(job: TokenizerJob) -> int:
    """Train and write a tokenizer; return its vocabulary size."""
    recipe = job.recipe
    tokenizer = train_tokenizer_on_texts(
        recipe.kind,
        job.text.read(),
        vocabulary=recipe.vocabulary,
        specials=recipe.specials,
        lowercase=recipe.lowercase,
        sentinels=recipe.sentinels,
        digits=recipe.digits,
    )
    tokenizer.save(job.path)
    return tokenizer.vocabulary
