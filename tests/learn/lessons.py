"""A short training of a tiny config on real text, asked at its end about held-out text in order and in disorder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

import numpy as np
import torch

from megaptm.batch import IGNORED, BatchSpec, MicroBatch
from megaptm.config import load, resolve_model
from megaptm.data import Loader, Mix, open_mix, validation_batches
from megaptm.data.statistics import unigram_loss
from megaptm.objectives import OBJECTIVES
from megaptm.objectives.objective import Objective, Piece, Sample, SampleContext, SentenceGroup, SequenceWindow
from tests.engines import filled_engine

CONFIGS = Path(__file__).parents[2] / "configs"
# The tiny configs with a fraction of their work: half the width, and rows as short as the task allows.
SMALLER = ("model.width=64", "model.heads=2", "model.ffn=256", "model.vocabulary=512", "layout.microbatch=32")
OVERRIDES = {
    "gpt2": ("model.layers=2", "data.sequence=32", "train.batch=64", "train.steps=200"),
    # Whether two texts belong together is learned from the first steps on, the masked words only after some hundred,
    # and last what their order says of them. At a higher rate, for some orders of the rows, they are never learned.
    "bert": (
        *("model.layers=2", "data.sequence=32", "train.batch=64", "train.steps=800"),
        *("optimizer.lr=3e-3", "optimizer.warmup_steps=120"),
    ),
    # In 64 tokens 10 are hidden; shorter rows hide so few that sentinels are most of what is said.
    "t5": (
        *("model.layers=1", "data.sequence=64", "train.batch=32", "train.steps=600"),
        *("optimizer.lr=5e-3", "optimizer.betas=[0.9, 0.98]"),
    ),
}


@dataclass(frozen=True)
class Lesson:
    """What was learned, measured on held-out rows. Losses in nats for each answer."""

    before: dict[str, float]
    after: dict[str, float]
    in_disorder: dict[str, float]
    """The same model on the same texts, their words permuted: one that sees its answers knows these too."""
    unigram: float
    """Entropy of the held-out answers: nobody who knows only how often each occurs, even here, goes below."""


class Shuffled(Objective):
    """An objective on text whose tokens have been permuted, each document's own within its row: no order to learn."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.name, self.losses = objective.name, objective.losses  # type: ignore[misc]  # the one it stands in for
        self.unit, self.required_tokens = objective.unit, objective.required_tokens

    def raw_length(self, sequence: int) -> int:
        return self.objective.raw_length(sequence)

    def cut(self, sequence: int, document_mask: bool) -> SequenceWindow:
        return self.objective.cut(sequence, document_mask)

    def batch(self, sequence: int, document_mask: bool) -> BatchSpec:
        return self.objective.batch(sequence, document_mask)

    def make(self, piece: Piece, context: SampleContext) -> Sample:
        return self.objective.make(_permuted(piece, context.rng), context)


def _permuted(piece: Piece, rng: np.random.Generator) -> Piece:
    if isinstance(piece, SentenceGroup):
        return SentenceGroup(
            _resplit(piece.sentences, rng),
            sample_other_document=lambda rng: _resplit(piece.sample_other_document(rng), rng),
        )
    return [replace(part, tokens=_shuffle(part.tokens, rng)) for part in piece]


def _resplit(sentences: Iterable[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
    """As many tokens in each sentence, but from anywhere in the text."""
    sentences = list(sentences)
    ends = np.cumsum([len(sentence) for sentence in sentences])
    return np.split(_shuffle(np.concatenate(sentences), rng), ends[:-1])


def _shuffle(tokens: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return tokens[rng.permutation(len(tokens))]


def learn(family: str, corpus: str) -> Lesson:
    """Train the family's tiny config on a corpus folder. Runs in a rank's process."""
    from megaptm.config.learning_rate import learning_rate
    from megaptm.tokenizers import load as load_tokenizer
    from megaptm.train.loop import mean_losses

    config = load(CONFIGS / family / "tiny.yaml", [*SMALLER, *OVERRIDES[family], f"data.mix={{{corpus}: 1}}"])
    objective = OBJECTIVES[config.objective]
    special = load_tokenizer(Path(corpus) / "tokenizer").special
    rows = {"batch": config.train.batch, "microbatch": config.layout.microbatch}

    def opened(split: str, objective: Objective) -> Mix:
        return open_mix(
            config.data.mix,
            split=split,
            objective=objective,
            sequence=config.data.sequence,
            seed=config.train.seed,
            special=special,
        )

    def held_out(objective: Objective) -> list[list[MicroBatch]]:
        batches = validation_batches(opened("validation", objective), **rows, max_steps=32)
        for batch in chain.from_iterable(batches):
            # Asked about words alone: the ends of texts and T5's sentinels are easy, and would hide what is hard.
            batch["labels"][torch.isin(batch["labels"], torch.tensor(sorted(special.specials)))] = IGNORED
        return batches

    ordered, permuted = held_out(objective), held_out(Shuffled(objective))
    engine = filled_engine(
        resolve_model(config), config.layout, config.optimizer, losses=objective.losses, seed=config.train.seed
    )
    before = mean_losses(engine, iter(ordered))
    with Loader(opened("train", objective), **rows) as loader:
        for step, batches in islice(loader, config.train.steps):
            engine.train_step(batches, step=step, lr=learning_rate(step, config.optimizer, steps=config.train.steps))
    after, in_disorder = (mean_losses(engine, iter(batches)) for batches in (ordered, permuted))
    answers = np.concatenate([batch["labels"].numpy().ravel() for batch in chain.from_iterable(ordered)])
    return Lesson(before, after, in_disorder, unigram_loss(np.bincount(answers[answers != IGNORED])))
