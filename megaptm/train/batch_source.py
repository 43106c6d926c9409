"""What a run reads: its tokenizer, its samples, and the micro-batches of each step for this process."""

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
    from megaptm.data.teacher_logits import TaughtMix, TeacherLogits


class Samples(Protocol):
    """The samples of a run, by number."""

    @property
    def corpora(self) -> Mapping[str, str]:
        """Name -> id of each corpus's manifest."""

    @property
    def batch(self) -> BatchSpec:
        """What every sample holds."""

    def cursors(self, number: int) -> Mapping[str, int]:
        """How many samples of each source come before sample `number`."""

    def epochs_begun(self, number: int) -> Mapping[str, int]:
        """How often each source has been begun by the samples before `number`."""


class StepSource(Protocol):
    """What the loop asks of it."""

    tokenizer: Tokenizer

    @property
    def train(self) -> Samples:
        """What is learned from."""

    def count(self) -> None:
        """Read what must be known of the whole text before the first step, which may take hours: not before a
        checkpoint was found to be of this text. All ranks at once."""

    def steps(self, start: int) -> Iterator[list[Any] | None]:
        """Each step's micro-batches, from step `start` on, without end."""

    def held_out(self) -> Iterator[list[Any] | None]:
        """The validation batches, the same at each call."""

    def close(self) -> None:
        """No more is read."""


class BatchSource:
    """Micro-batches for one process; `None`s where tensor rank 0 reads and this rank is sent what it read."""

    def __init__(self, config: Config, ranks: Ranks, corpora: RunCorpora) -> None:
        self.config = config
        self.ranks = ranks
        self.tokenizer = corpora.tokenizer
        self.train, self.validation = corpora.mix("train"), corpora.mix("validation")
        self._kept = _kept_logits(config)
        """What is kept of a teacher that is not run."""
        self._loader: Loader | None = None

    @property
    def reads(self) -> bool:
        return self.ranks.tensor == 0

    def count(self) -> None:
        """Nothing: samples are known by their numbers."""

    def steps(self, start: int) -> Iterator[list[MicroBatch] | None]:
        """Each step's micro-batches, from step `start` on, without end."""
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
        """The validation batches, the same at each call, read as they are asked for."""
        batch, most = self.config.train.batch, self.config.train.validate_batches
        if not self.reads:
            return repeat(None, validation_steps(self.validation, batch=batch, most=most))
        return read_validation(
            self._taught(self.validation, "validation"),
            batch=batch,
            microbatch=self.config.layout.microbatch,
            rank=self.ranks.data,
            ranks=self.ranks.data_size,
            most=most,
            workers=self.config.data.workers if self.config.built_objective.blobs else None,
        )

    def _taught(self, mix: Mix, split: str) -> Mix | TaughtMix:
        if self._kept is None:
            return mix
        from megaptm.data.teacher_logits import TaughtMix

        return TaughtMix(mix, self._kept.of(split))

    def close(self) -> None:
        if self._loader is not None:
            self._loader.close()


def _kept_logits(config: Config) -> TeacherLogits | None:
    if config.distill is None or config.distill.cached is None:
        return None
    from megaptm.run.teacher import teacher_logits

    return teacher_logits(config)
