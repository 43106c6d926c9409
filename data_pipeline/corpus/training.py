"""A tokenizer is trained on a sample of the training split, the same sample for the same documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_pipeline.corpus.parts import Part
from data_pipeline.corpus.selection import Selection
from data_pipeline.corpus.work import JobRunner, key_of
from data_pipeline.deduplicate import read_part
from data_pipeline.recipe import TokenizerRecipe
from megaptm.tokenizers import KINDS, Tokenizer, load, train

# Text a tokenizer is trained on. More changes few of its pieces and takes longer; Unigram is slow, words are counted.
TRAINING_BYTES = dict.fromkeys(KINDS, 20 << 20) | {"unigram": 4 << 20, "words": 200 << 20}


@dataclass(frozen=True)
class TokenizerJob:
    """What a worker needs to train a tokenizer."""

    folder: str
    """Where to write it, under a name made of what it learned from."""
    recipe: TokenizerRecipe
    sample: tuple[tuple[str, np.ndarray], ...]
    """Stem of a part, int64 rows of it."""

    @property
    def path(self) -> Path:
        return Path(self.folder, key_of(_train, self))


def train_tokenizer(recipe: TokenizerRecipe, selection: Selection, work: JobRunner) -> Tokenizer:
    """As the recipe says; an earlier build may have done it."""
    parts: Sequence[Part] = selection.parts  # type: ignore[assignment]
    places = selection.sample("train", TRAINING_BYTES[recipe.kind])
    sample = tuple((parts[number].stem, rows) for number, rows in places)
    job = TokenizerJob(str(work.folder / "tokenizers"), recipe, sample)
    work.run("tokenizer", _train, [job])
    return load(job.path)


def _train(job: TokenizerJob) -> int:
    """Train and write one; returns its number of ids."""
    recipe = job.recipe
    texts = (document.text for stem, rows in job.sample for document in read_part(stem, rows))
    tokenizer = train(
        recipe.kind,
        texts,
        vocabulary=recipe.vocabulary,
        specials=recipe.specials,
        lowercase=recipe.lowercase,
        sentinels=recipe.sentinels,
        digits=recipe.digits,
    )
    tokenizer.save(job.path)
    return tokenizer.vocabulary
