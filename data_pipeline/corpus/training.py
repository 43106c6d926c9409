"""A tokenizer is trained on a sample of the training split, the same sample for the same documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from data_pipeline.corpus.parts import Part
from data_pipeline.corpus.selection import Selection
from data_pipeline.corpus.work import JobRunner, key_of
from data_pipeline.deduplicate import read_part
from data_pipeline.recipe import TokenizerRecipe
from megaptm.tokenizers import KINDS, train

# Text a tokenizer is trained on. More changes few of its pieces and takes longer; Unigram is slow, words are counted.
TRAINING_BYTES = dict.fromkeys(KINDS, 20 << 20) | {"unigram": 4 << 20, "words": 200 << 20}


class TrainingText(Protocol):
    """Where a worker finds the text to train on: a frozen dataclass, of whose fields the job's name is made."""

    def read(self) -> Iterator[str]:
        """One text after the other."""


@dataclass(frozen=True)
class DocumentSample:
    """Documents of the parts of a build."""

    rows: tuple[tuple[str, np.ndarray], ...]
    """Stem of a part, int64 rows of it."""

    @classmethod
    def of(cls, selection: Selection, kind: str) -> DocumentSample:
        """As much of the training split as a kind of tokenizer is trained on."""
        parts: Sequence[Part] = selection.parts  # type: ignore[assignment]
        places = selection.sample("train", TRAINING_BYTES[kind])
        return cls(tuple((parts[number].stem, rows) for number, rows in places))

    def read(self) -> Iterator[str]:
        return (document.text for stem, rows in self.rows for document in read_part(stem, rows))


@dataclass(frozen=True)
class TokenizerJob:
    """What a worker needs to train a tokenizer."""

    folder: str
    """Where to write it, under a name made of what it learned from."""
    recipe: TokenizerRecipe
    text: TrainingText

    @property
    def path(self) -> Path:
        return Path(self.folder, key_of(_train, self))


def train_tokenizer(recipe: TokenizerRecipe, text: TrainingText, work: JobRunner) -> Path:
    """Train one as the recipe says, unless an earlier build has done it; returns its folder."""
    job = TokenizerJob(str(work.folder / "tokenizers"), recipe, text)
    work.run("tokenizer", _train, [job])
    return job.path


def _train(job: TokenizerJob) -> int:
    """Train and write one; returns its number of ids."""
    recipe = job.recipe
    tokenizer = train(
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
