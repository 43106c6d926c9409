"""Mix of corpora in which each batch belongs to one task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from megaptm.batch import BatchSpec
from megaptm.data.mix import Mix, MixSource, divide_by_shares, ranks_in_source, task_shares
from megaptm.data.seeds import seeded_generator
from megaptm.errors import UserError

BATCHES = 360
"""Number of batches per block. Each task has exactly its share of them, rounded to multiples of 1 / BATCHES."""


class BatchMix(Mix):
    """Mix in which all samples of a step belong to one task, which depends only on the step.

    A sample has no labels of other tasks, so all ranks skip the same heads in a step.
    """

    def __init__(self, sources: Sequence[MixSource], *, batch: int, **options: Any):
        """Create the mix for batches of `batch` samples, the same number in every step."""
        self.batch_size, self.block, self.phase_multiple = batch, batch * BATCHES, batch
        labels = np.array([source.task.label for source in sources])
        self._sources_of_task = [np.flatnonzero(labels == label) for label in dict.fromkeys(labels.tolist())]
        """Indexes of the sources of each task."""
        super().__init__(sources, **options)
        self._specs_of_task = [self._batch_spec.with_labels(spec.label_names) for spec in self._source_specs]

    def _sample_spec(self, source: int) -> BatchSpec:
        return self._specs_of_task[source]

    def _quotas(self, step: int) -> list[int]:
        shares, quotas = task_shares(self.sources, step), np.zeros(len(self.sources), dtype=np.int64)
        batches = divide_by_shares(np.array([*shares.values()]), BATCHES)
        shares_of_corpora = self._corpus_shares(step)
        for (label, share), own, number in zip(shares.items(), self._sources_of_task, batches, strict=True):
            if share and not number:
                raise UserError(
                    f"objective.{label}.share is less than one batch in {BATCHES}: raise it, or remove the task."
                )
            quotas[own] = divide_by_shares(shares_of_corpora[own], number * self.batch_size)
        return quotas.tolist()

    def _assign_block(self, key: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        index, block = key
        quotas = np.array(self.phases[index].quotas)
        batches = [int(quotas[own].sum()) // self.batch_size for own in self._sources_of_task]
        task = seeded_generator(self.seed, "batches", *self._salt, index, block).permutation(
            np.repeat(np.arange(len(batches)), batches)
        )
        task = task.repeat(self.batch_size)
        source = np.empty(self.block, dtype=np.int64)
        for task_index, own in enumerate(self._sources_of_task):
            unshuffled = np.repeat(own, quotas[own])
            source[task == task_index] = seeded_generator(
                self.seed, "mix", *self._salt, index, block, task_index
            ).permutation(unshuffled)
        return source, ranks_in_source(source, quotas.tolist())
