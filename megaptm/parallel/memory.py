"""Recurrence caches of layers, by sample of the global batch (Transformer-XL and XLNet).

Each data rank caches its own samples. Each tensor rank caches full sequences, even with sequence parallelism: its heads
need keys of all cached positions, so every layer would gather slices, and the slices would need equal lengths.
Evaluation has its own cache.
"""

# R samples of this data rank, M cached positions, D width

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from megaptm.checkpoint.tensors import TensorPiece, TensorReader
from megaptm.errors import UserError
from megaptm.layers.past import Past
from megaptm.models.model import Model
from megaptm.parallel.groups import Ranks

FILLED = "memory/filled"
"""Checkpoint tensor, int64 [R]: number of cached positions that are filled."""


class RowMemory:
    """Recurrence cache of one chunk of the model. A pass reads the cache and notes new states; `keep` stores them."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.states: dict[tuple[str, int], Tensor] = {}
        """(stack, layer) -> [R, M, D]."""
        self.filled: Tensor | None = None
        """int64 [R]"""
        self._moved: list[dict[str, Past]] = []
        self._next = 0

    def begin(self, rows: int, *, anew: bool = False) -> None:
        """Start a pass over `rows` samples, which continue those of the last pass. With `anew` their number may
        change."""
        self._moved, self._next = [], 0
        if self.filled is None or (anew and len(self.filled) != rows):
            self.forget(rows)
        if self.filled is not None and len(self.filled) != rows:
            raise UserError(
                f"a data rank remembers {len(self.filled)} rows, and is given {rows}: rows go on where they ended, so "
                "leave train.batch as it was when the run began."
            )

    def forget(self, rows: int) -> None:
        """Empty the cache, for `rows` samples."""
        pasts = self.model.empty_pasts(rows)
        self.states = {
            (stack, layer): state.transpose(0, 1).contiguous()
            for stack, past in pasts.items()
            for layer, state in past.states.items()
        }
        self.filled = next((past.filled for past in pasts.values()), None)

    def of_rows(self, rows: int) -> dict[str, Past]:
        """Return the cache of the next `rows` samples of the pass, by stack."""
        if not self.states:
            return {}
        assert self.filled is not None
        mine = slice(self._next, self._next + rows)
        self._next += rows
        pasts: dict[str, Past] = {}
        for stack in dict.fromkeys(stack for stack, _ in self.states):
            states = {n: state[mine].transpose(0, 1) for (name, n), state in self.states.items() if name == stack}
            pasts[stack] = Past(states, self.filled[mine])
        return pasts

    def note(self, pasts: dict[str, Past]) -> None:
        """Note the new states of samples that were just read."""
        self._moved.append({stack: past.moved_on() for stack, past in pasts.items()})

    def keep(self) -> None:
        """Store the noted states. Not called after a rejected step."""
        first = 0
        for pasts in self._moved:
            for stack, past in pasts.items():
                mine = slice(first, first + len(past.filled))
                assert self.filled is not None
                self.filled[mine] = past.filled
                for layer, state in past.states.items():
                    self.states[stack, layer][mine] = state.transpose(0, 1)
            first += len(next(iter(pasts.values())).filled) if pasts else 0
        self._moved = []

    def pieces(self, ranks: Ranks, *, first: bool) -> Iterator[TensorPiece]:
        """Yield the checkpoint tensors of this rank; `first`: whether to include those common to all chunks."""
        if ranks.tensor > 0 or self.filled is None:
            return
        rows = len(self.filled)

        def piece(name: str, data: Tensor) -> TensorPiece:
            rest = tuple(data.shape[1:])
            shape, offset = (rows * ranks.data_size, *rest), (rows * ranks.data, *[0] * len(rest))
            return TensorPiece(name=name, shape=shape, offset=offset, block=(rows, *rest), data=data)

        for (stack, layer), state in self.states.items():
            yield piece(f"memory/{stack}.{layer}", state.float())
        if first:
            yield piece(FILLED, self.filled)

    def restore(self, reader: TensorReader, ranks: Ranks) -> None:
        """Read the samples of this data rank from a checkpoint of any layout."""
        if FILLED not in reader.names():
            return
        mine = reader.shape(FILLED)[0] // ranks.data_size
        self.forget(mine)
        if self.filled is None:
            return
        self.filled.copy_(reader.read(FILLED, (ranks.data * mine,), (mine,)))
        for (stack, layer), state in self.states.items():
            name, shape = f"memory/{stack}.{layer}", tuple(state.shape)
            state.copy_(reader.read(name, (ranks.data * mine, 0, 0), shape))
