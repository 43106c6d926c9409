"""Input of a run: tokenizer, samples, and the micro-batches of each step for this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import TYPE_CHECKING, Any, Protocol

import torch

from megaptm.batch import BatchSpec, MicroBatch
from megaptm.config import Config
from megaptm.data.loader import Loader, read_validation, validation_steps
from megaptm.data.mix import Mix
from megaptm.parallel.groups import Ranks
from megaptm.run.corpora import RunCorpora
from megaptm.tokenizers import Tokenizer

if TYPE_CHECKING:
    from megaptm.data.teacher_logits import TeacherLogits, TeacherLogitsMix


class Samples(Protocol):
    """Samples of a run, by index."""

    @property
    def corpora(self) -> Mapping[str, str]:
        """Corpus name -> id of its manifest."""

    @property
    def batch(self) -> BatchSpec:
        """Fields of every sample."""

    def cursors(self, number: int) -> Mapping[str, int]:
        """Return how many samples of each source come before sample `number`."""

    def epochs_started(self, number: int) -> Mapping[str, int]:
        """Return how many epochs of each source the samples before `number` have started."""


class StepSource(Protocol):
    """Interface of the loop to its input."""

    tokenizer: Tokenizer

    @property
    def train(self) -> Samples:
        """Training samples."""

    def count(self) -> None:
        """Read what is needed of the full text before the first step. This may take hours, so it runs after the
        checkpoint was compared with the text. All ranks call it together."""

    def steps(self, start: int) -> Iterator[list[Any] | None]:
        """Yield each step's micro-batches from step `start` on, without end."""

    def held_out(self) -> Iterator[list[Any] | None]:
        """Return the validation batches, the same at each call."""

    def close(self) -> None:
        """Release the readers; nothing is read afterwards."""


class BatchSource:
    """Micro-batches of one process; None on ranks that receive the batches of tensor rank 0."""

    def __init__(self, config: Config, ranks: Ranks, corpora: RunCorpora) -> None:
        self.config = config
        self.ranks = ranks
        self.tokenizer = corpora.tokenizer
        self.train, self.validation = corpora.mix("train"), corpora.mix("validation")
        self._teacher_logits = _cached_logits(config)
        """Cached logits of a teacher that does not run."""
        self._loader: Loader | None = None

    @property
    def reads(self) -> bool:
        return self.ranks.tensor == 0

    def count(self) -> None:
        """Do nothing: samples are known by their index."""

    def steps(self, start: int) -> Iterator[list[MicroBatch] | None]:
        """Yield each step's micro-batches from step `start` on, without end."""
        if not self.reads:
            while True:
                yield None
        self._loader = Loader(
            self._taught(self.train, "train"),
            start_step=start,
            batch=self.config.batch_schedule,
            microbatch=self.config.layout.microbatch,
            rank=self.ranks.data,
            ranks=self.ranks.data_size,
            workers=self.config.data.workers,
            pin=torch.cuda.is_available(),
        )
        for _, batches in self._loader:
            yield batches

    def held_out(self) -> Iterator[list[MicroBatch] | None]:
        """Return the validation batches, the same at each call, read lazily."""
        batch, max_batches = self.config.train.batch, self.config.train.validate_batches
        if not self.reads:
            return repeat(None, validation_steps(self.validation, batch=batch, max_steps=max_batches))
        return read_validation(
            self._taught(self.validation, "validation"),
            batch=batch,
            microbatch=self.config.layout.microbatch,
            rank=self.ranks.data,
            ranks=self.ranks.data_size,
            max_steps=max_batches,
            workers=self.config.data.workers if self.config.built_objective.blobs else None,
        )

    def _taught(self, mix: Mix, split: str) -> Mix | TeacherLogitsMix:
        if self._teacher_logits is None:
            return mix
        from megaptm.data.teacher_logits import TeacherLogitsMix

        return TeacherLogitsMix(mix, self._teacher_logits.split(split))

    def close(self) -> None:
        if self._loader is not None:
            self._loader.close()


def _cached_logits(config: Config) -> TeacherLogits | None:
    if config.distill is None or config.distill.cached_logits is None:
        return None
    from megaptm.run.teacher import teacher_logits

    return teacher_logits(config)
