"""Recurrence caches of layers, by sample of the global batch (Transformer-XL and XLNet).

Each data rank caches its own samples. Each tensor rank caches full sequences, even with sequence parallelism: its heads
need keys of all cached positions, so every layer would gather slices, and the slices would need equal lengths.
Evaluation has its own cache.
"""

# R samples of this data rank, M cached positions, D width

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from megaptm.batch import MicroBatch
from megaptm.checkpoint.tensors import TensorPiece, TensorReader
from megaptm.errors import UserError
from megaptm.layers.recurrence_cache import StackRecurrenceCache
from megaptm.models.model import Model
from megaptm.parallel.groups import Ranks
from megaptm.parallel.hooks import EngineHook
from megaptm.parallel.pipeline import Pipeline

FILLED = "memory/filled"
"""Name of the checkpoint tensor that counts the valid positions of each sample's recurrence cache, int64 [R]."""


class RecurrenceHook(EngineHook):
    """Engine hook with the recurrence caches of this rank's pipeline chunks: one for training, which is in checkpoints,
    and one for evaluation."""

    def __init__(self, models: Sequence[Model], ranks: Ranks) -> None:
        self.training = [RecurrenceCache(model) for model in models]
        self.evaluation = [RecurrenceCache(model) for model in models]
        self.current = self.training
        self._ranks = ranks
        self._caches: list[dict[str, StackRecurrenceCache]] = [{} for _ in models]

    @contextmanager
    def wrap_passes(
        self, pipeline: Pipeline, microbatches: list[MicroBatch], *, step: int | None
    ) -> Iterator[Mapping[str, Tensor]]:
        self.current = self.evaluation if step is None else self.training
        num_samples = sum(len(batch["tokens"]) for batch in microbatches)
        for cache in self.current:
            cache.begin(num_samples, resizable=step is None)
        yield {}

    def forward_arguments(self, chunk: int, batch: MicroBatch) -> dict[str, Any]:
        self._caches[chunk] = self.current[chunk].next_samples(len(batch["tokens"]))
        return {"caches": self._caches[chunk]}

    def after_forward(self, chunk: int) -> None:
        self.current[chunk].note_states(self._caches[chunk])
        self._caches[chunk] = {}

    def after_step(self) -> None:
        for cache in self.current:
            cache.commit()

    def pieces(self) -> Iterator[TensorPiece]:
        for chunk, cache in enumerate(self.training):
            yield from cache.pieces(self._ranks, first=self._ranks.pipeline == 0 and chunk == 0)

    def restore(self, reader: TensorReader) -> None:
        for cache in self.training:
            cache.restore(reader, self._ranks)


class RecurrenceCache:
    """Recurrence cache of one pipeline chunk. A pass reads the cache and notes new hidden states; `commit` stores
    them."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.states: dict[tuple[str, int], Tensor] = {}
        """Cached hidden states, (stack, layer) -> [R, M, D]."""
        self.filled: Tensor | None = None
        """Number of valid positions of each sample's recurrence cache, int64 [R]."""
        self._noted: list[dict[str, StackRecurrenceCache]] = []
        self._next_sample = 0

    def begin(self, num_samples: int, *, resizable: bool = False) -> None:
        """Start a pass whose samples continue those of the last pass. With `resizable` their number may change."""
        self._noted, self._next_sample = [], 0
        if self.filled is None or (resizable and len(self.filled) != num_samples):
            self.clear(num_samples)
        if self.filled is not None and len(self.filled) != num_samples:
            raise UserError(
                f"the recurrence cache of a data rank holds {len(self.filled)} samples, and the batch has "
                f"{num_samples}: each sample continues one of the step before. Keep train.batch as it was at the "
                "start of the run."
            )

    def clear(self, num_samples: int) -> None:
        """Empty the recurrence cache, and set the number of its samples."""
        caches = self.model.empty_caches(num_samples)
        self.states = {
            (stack, layer): state.transpose(0, 1).contiguous()
            for stack, stack_cache in caches.items()
            for layer, state in stack_cache.states.items()
        }
        self.filled = next((stack_cache.filled for stack_cache in caches.values()), None)

    def next_samples(self, num_samples: int) -> dict[str, StackRecurrenceCache]:
        """Return the recurrence cache of the next samples of the pass, by stack."""
        if not self.states:
            return {}
        assert self.filled is not None
        samples = slice(self._next_sample, self._next_sample + num_samples)
        self._next_sample += num_samples
        caches: dict[str, StackRecurrenceCache] = {}
        for stack in dict.fromkeys(stack for stack, _ in self.states):
            states = {n: state[samples].transpose(0, 1) for (name, n), state in self.states.items() if name == stack}
            caches[stack] = StackRecurrenceCache(states, self.filled[samples])
        return caches

    def note_states(self, caches: dict[str, StackRecurrenceCache]) -> None:
        """Note the new hidden states of the samples that the model just read."""
        self._noted.append({stack: stack_cache.after_sequence() for stack, stack_cache in caches.items()})

    def commit(self) -> None:
        """Store the noted hidden states in the recurrence cache. Not called after a rejected step."""
        first = 0
        for caches in self._noted:
            for stack, stack_cache in caches.items():
                samples = slice(first, first + len(stack_cache.filled))
                assert self.filled is not None
                self.filled[samples] = stack_cache.filled
                for layer, state in stack_cache.states.items():
                    self.states[stack, layer][samples] = state.transpose(0, 1)
            first += len(next(iter(caches.values())).filled) if caches else 0
        self._noted = []

    def pieces(self, ranks: Ranks, *, first: bool) -> Iterator[TensorPiece]:
        """Yield the recurrence cache of this rank as checkpoint pieces. `first`: whether to include those common to all
        chunks."""
        if ranks.tensor > 0 or self.filled is None:
            return
        num_samples = len(self.filled)

        def piece(name: str, data: Tensor) -> TensorPiece:
            inner = tuple(data.shape[1:])
            shape, offset = (num_samples * ranks.data_size, *inner), (num_samples * ranks.data, *[0] * len(inner))
            return TensorPiece(name=name, shape=shape, offset=offset, block=(num_samples, *inner), data=data)

        for (stack, layer), state in self.states.items():
            yield piece(f"memory/{stack}.{layer}", state.float())
        if first:
            yield piece(FILLED, self.filled)

    def restore(self, reader: TensorReader, ranks: Ranks) -> None:
        """Read the recurrence cache of this data rank's samples from a checkpoint of any layout."""
        if FILLED not in reader.names():
            return
        num_samples = reader.shape(FILLED)[0] // ranks.data_size
        self.clear(num_samples)
        if self.filled is None:
            return
        self.filled.copy_(reader.read(FILLED, (ranks.data * num_samples,), (num_samples,)))
        for (stack, layer), state in self.states.items():
            name, shape = f"memory/{stack}.{layer}", tuple(state.shape)
            state.copy_(reader.read(name, (ranks.data * num_samples, 0, 0), shape))
