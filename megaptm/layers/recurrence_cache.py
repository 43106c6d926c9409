"""Recurrence cache of a stack (arXiv:1901.02860, 3.2). No gradient flows into it."""

# M positions of the cache, S sequence, B batch, D width

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class StackRecurrenceCache:
    """Recurrence cache: inputs of each layer in earlier sequences, to which it attends besides the current sequence."""

    def __init__(
        self, states: dict[int, Tensor], filled: Tensor, *, farthest: int | None = None, same_length: bool = False
    ) -> None:
        """Create a recurrence cache with these hidden states.

        `states`: layer -> [M, B, D]. `filled` int64 [B]: number of valid positions at the end of the cache. Distances
        above `farthest` are clamped to it. With `same_length` each query attends to M keys. Both are for evaluation
        (`clamp_len` and `same_length` of the released code).
        """
        self.states, self.filled, self.farthest, self.same_length = states, filled, farthest, same_length
        self.current_states: dict[int, Tensor] = {}
        """Input of each layer in the current sequence, [S, B, D], or the part of it that enters the recurrence
        cache."""

    @classmethod
    def empty(
        cls, layers: Iterable[int], shape: tuple[int, int, int], *, like: Tensor, farthest: int | None = None
    ) -> StackRecurrenceCache:
        """Return an empty recurrence cache; `shape` is (M, B, D)."""
        states = {layer: like.new_zeros(shape) for layer in layers}
        filled = torch.zeros(shape[1], dtype=torch.int64, device=like.device)
        return cls(states, filled, farthest=farthest)

    @property
    def length(self) -> int:
        """Return the length M of the recurrence cache."""
        return next(iter(self.states.values())).shape[0]

    def start(self, starts_B: Tensor) -> None:
        """Clear the recurrence cache of the sequences that do not continue an earlier one."""
        self.filled = self.filled.masked_fill(starts_B.bool(), 0)

    def after_sequence(self) -> StackRecurrenceCache:
        """Return the recurrence cache after the current sequence."""
        length, new_positions = self.length, len(next(iter(self.current_states.values())))
        states = {
            layer: torch.cat([before[new_positions:], self.current_states[layer][-length:]])
            for layer, before in self.states.items()
        }
        filled = (self.filled + new_positions).clamp(max=length)
        return StackRecurrenceCache(states, filled, farthest=self.farthest, same_length=self.same_length)
