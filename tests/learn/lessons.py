"""Short training of a tiny config on real text, evaluated on validation text and on the same text shuffled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

import numpy as np
import torch

from megaptm.batch import IGNORED, BatchSpec, MicroBatch
from megaptm.config import load_config, resolve_model
from megaptm.data import Loader, Mix, open_mix, read_validation
from megaptm.data.statistics import unigram_loss
from megaptm.objectives import OBJECTIVES
from megaptm.objectives.objective import Objective, Piece, Sample, SampleContext, SentenceGroup, SequenceWindow
from tests.engines import filled_engine

CONFIGS = Path(__file__).parents[2] / "configs"
# The tiny configs with half the width and the shortest sequences that the task allows.
SMALLER = ("model.width=64", "model.heads=2", "model.ffn=256", "model.vocabulary=512", "layout.microbatch=32")
OVERRIDES = {
    "gpt2": ("model.layers=2", "data.sequence=32", "train.batch=64", "train.steps=200"),
    # Next-sentence prediction is learned from the first steps, masked words only after hundreds, and the use of word
    # order last. With a higher rate, masked words are never learned for some sample orders.
    "bert": (
        *("model.layers=2", "data.sequence=32", "train.batch=64", "train.steps=800"),
        *("optimizer.lr=3e-3", "optimizer.warmup_steps=120"),
    ),
    # 10 of 64 tokens are masked. In shorter sequences, most labels would be sentinels.
    "t5": (
        *("model.layers=1", "data.sequence=64", "train.batch=32", "train.steps=600"),
        *("optimizer.lr=5e-3", "optimizer.betas=[0.9, 0.98]"),
    ),
}


@dataclass(frozen=True)
class Lesson:
    """Losses on validation samples in nats per label."""

    before: dict[str, float]
    after: dict[str, float]
    shuffled: dict[str, float]
    """Losses of the trained model on texts with shuffled tokens. Low if the labels leak into the input."""
    unigram: float
    """Entropy of the validation labels: the lowest loss of a model that only knows their frequencies."""


class Shuffled(Objective):
    """Objective on text with shuffled tokens. The tokens of a document stay within their sequence."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.name, self.losses = objective.name, objective.losses  # type: ignore[misc]
        self.unit, self.required_tokens = objective.unit, objective.required_tokens

    def raw_length(self, sequence: int) -> int:
        return self.objective.raw_length(sequence)

    def sequence_window(self, sequence: int, document_mask: bool) -> SequenceWindow:
        return self.objective.sequence_window(sequence, document_mask)

    def batch_spec(self, sequence: int, document_mask: bool) -> BatchSpec:
        return self.objective.batch_spec(sequence, document_mask)

    def make_sample(self, piece: Piece, context: SampleContext) -> Sample:
        return self.objective.make_sample(_shuffle_piece(piece, context.rng), context)


def _shuffle_piece(piece: Piece, rng: np.random.Generator) -> Piece:
    if isinstance(piece, SentenceGroup):
        return SentenceGroup(
            _shuffle_sentences(piece.sentences, rng),
            sample_other_document=lambda rng: _shuffle_sentences(piece.sample_other_document(rng), rng),
        )
    return [replace(part, tokens=_shuffle(part.tokens, rng)) for part in piece]


def _shuffle_sentences(sentences: Iterable[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
    """Return sentences of the same lengths, with the tokens of the text shuffled across them."""
    sentences = list(sentences)
    ends = np.cumsum([len(sentence) for sentence in sentences])
    return np.split(_shuffle(np.concatenate(sentences), rng), ends[:-1])


def _shuffle(tokens: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return tokens[rng.permutation(len(tokens))]


def train_and_evaluate(family: str, corpus: str) -> Lesson:
    """Train the family's tiny config on a corpus folder. Runs in the process of a rank."""
    from megaptm.config.learning_rate import learning_rate
    from megaptm.tokenizers import load_tokenizer
    from megaptm.train.loop import mean_losses

    config = load_config(CONFIGS / family / "tiny.yaml", [*SMALLER, *OVERRIDES[family], f"data.mix={{{corpus}: 1}}"])
    objective = OBJECTIVES[config.objective]
    special = load_tokenizer(Path(corpus) / "tokenizer").special
    batch_sizes = {"batch": config.train.batch, "microbatch": config.layout.microbatch}

    def open_split(split: str, objective: Objective) -> Mix:
        return open_mix(
            config.data.mix,
            split=split,
            objective=objective,
            sequence=config.data.sequence,
            seed=config.train.seed,
            special=special,
        )

    def make_validation_batches(objective: Objective) -> list[list[MicroBatch]]:
        batches = [*read_validation(open_split("validation", objective), **batch_sizes, max_steps=32)]
        for batch in chain.from_iterable(batches):
            # Labels are words only: ends of texts and T5's sentinels are easy, and would lower the mean.
            batch["labels"][torch.isin(batch["labels"], torch.tensor(sorted(special.specials)))] = IGNORED
        return batches

    ordered, shuffled = make_validation_batches(objective), make_validation_batches(Shuffled(objective))
    engine = filled_engine(
        resolve_model(config), config.layout, config.optimizer, losses=objective.losses, seed=config.train.seed
    )
    before = mean_losses(engine, iter(ordered))
    with Loader(open_split("train", objective), **batch_sizes) as loader:
        for step, batches in islice(loader, config.train.steps):
            engine.train_step(batches, step=step, lr=learning_rate(step, config.optimizer, steps=config.train.steps))
    after, after_shuffled = (mean_losses(engine, iter(batches)) for batches in (ordered, shuffled))
    labels = np.concatenate([batch["labels"].numpy().ravel() for batch in chain.from_iterable(ordered)])
    return Lesson(before, after, after_shuffled, unigram_loss(np.bincount(labels[labels != IGNORED])))
