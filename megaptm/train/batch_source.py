"""Input of the training loop: tokenizer, samples, and the micro-batches of each step for this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import Any, Protocol

import torch

from megaptm.batch import BatchSpec, MicroBatch
from megaptm.config import Config
from megaptm.data.loader import Loader, read_validation, validation_steps
from megaptm.data.mix import Mix, SampleSource
from megaptm.parallel.background import run_on_all_ranks
from megaptm.parallel.groups import Ranks
from megaptm.run.corpora import RunCorpora
from megaptm.run.hooks import run_hooks
from megaptm.tokenizers import Tokenizer


class Samples(Protocol):
    """Interface of the samples of a run, by index."""

    @property
    def corpora(self) -> Mapping[str, str]:
        """Return the ids of the run's corpora: name -> id of the manifest."""

    @property
    def batch_spec(self) -> BatchSpec:
        """Return the specification of the batch fields that every sample has."""

    def cursors(self, number: int) -> Mapping[str, int]:
        """Return the number of samples of each source before sample `number`."""

    def samples_read(self, number: int) -> Mapping[str, tuple[int, int]]:
        """Return how many samples of each source come before sample `number`, and how many an epoch has. The keys do
        not depend on the paths of the corpora. Empty if a run cannot continue with other data."""

    def epochs_started(self, number: int) -> Mapping[str, int]:
        """Return the number of epochs of each source that the samples before `number` have started."""


class StepSource(Protocol):
    """Interface of the input of the training loop."""

    tokenizer: Tokenizer

    @property
    def train(self) -> Samples:
        """Return the training samples of the run."""

    def count_text(self) -> None:
        """Count what training needs to know of the full text before the first step. This may take hours, so it runs
        after the checkpoint was compared with the text. All ranks call it together."""

    def steps(self, start: int) -> Iterator[list[Any] | None]:
        """Yield the micro-batches of each training step from step `start` on, without end."""

    def validation_batches(self, name: str = "") -> Iterator[list[Any] | None]:
        """Return the batches of a validation set, the same at each call. An empty name is the mix."""

    def close(self) -> None:
        """Release the readers of training data; nothing is read afterwards."""


class BatchSource:
    """Input of the training loop on one process: micro-batches, or None on ranks that receive the batches of tensor
    rank 0."""

    def __init__(self, config: Config, ranks: Ranks, corpora: RunCorpora) -> None:
        self.config = config
        self.ranks = ranks
        self.tokenizer = corpora.tokenizer

        def open_mixes() -> tuple[Mix, Mix, dict[str, Mix]]:
            return corpora.mix("train"), corpora.mix("validation"), corpora.validation_mixes()

        # With a share of the checks, damage that one rank finds is raised on all.
        opened = run_on_all_ranks(open_mixes) if corpora.share else open_mixes()
        self.train, self.validation, self._sets = opened
        self._read_train = _with_extension_fields(config, self.train, "train")
        self._read_validation = _with_extension_fields(config, self.validation, "validation")
        """Validation samples with the batch fields that extensions add."""
        self._loader: Loader | None = None

    @property
    def reads(self) -> bool:
        return self.ranks.tensor == 0

    def count_text(self) -> None:
        """Do nothing: samples of these corpora are known by their index."""

    def steps(self, start: int) -> Iterator[list[MicroBatch] | None]:
        """Yield the micro-batches of each training step from step `start` on, without end."""
        if not self.reads:
            while True:
                yield None
        self._loader = Loader(
            self._read_train,
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

    def validation_batches(self, name: str = "") -> Iterator[list[MicroBatch] | None]:
        """Return the batches of a validation set, the same at each call, read lazily. An empty name is the mix."""
        batch, max_batches = self.config.train.batch, self.config.train.validate_batches
        if name:
            max_batches = self.config.data.validation_sets[name].batches or max_batches
        if not self.reads:
            samples = self._sets[name] if name else self.validation
            return repeat(None, validation_steps(samples, batch=batch, max_steps=max_batches))
        return read_validation(
            self._sets[name] if name else self._read_validation,
            batch=batch,
            microbatch=self.config.layout.microbatch,
            rank=self.ranks.data,
            ranks=self.ranks.data_size,
            max_steps=max_batches,
            workers=self.config.data.workers if self.config.built_objective.blobs else None,
        )

    def close(self) -> None:
        if self._loader is not None:
            self._loader.close()


def _with_extension_fields(config: Config, samples: SampleSource, split: str) -> SampleSource:
    """Return the samples of a split with the batch fields that extensions add."""
    for hook in run_hooks(config):
        samples = hook.with_added_fields(config, samples, split)
    return samples
