"""What the layers of a stack remember of the rows before (arXiv:1901.02860, 3.2): no gradient goes there."""

# M places that are remembered, S places of a row, B batch, D width

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class Past:
    """What each layer read in earlier rows, which it attends to besides the row at hand; to be filled and moved on."""

    def __init__(
        self, states: dict[int, Tensor], filled: Tensor, *, farthest: int | None = None, same_length: bool = False
    ) -> None:
        """`states`: layer -> [M, B, D]; `filled` int64 [B]: how many of the last M there are, the others are not seen.

        Distances above `farthest` are taken for it; with `same_length` each place sees as many keys, M. Both are for
        evaluation (the released code's `clamp_len` and `same_length`).
        """
        self.states, self.filled, self.farthest, self.same_length = states, filled, farthest, same_length
        self.seen: dict[int, Tensor] = {}
        """Layer -> what it read of the row at hand, or of as much of it as is remembered, [S, B, D]."""

    @classmethod
    def empty(
        cls, layers: Iterable[int], shape: tuple[int, int, int], *, like: Tensor, farthest: int | None = None
    ) -> Past:
        """Nothing is remembered; `shape` is (M, B, D)."""
        states = {layer: like.new_zeros(shape) for layer in layers}
        filled = torch.zeros(shape[1], dtype=torch.int64, device=like.device)
        return cls(states, filled, farthest=farthest)

    @property
    def length(self) -> int:
        """M"""
        return next(iter(self.states.values())).shape[0]

    def begin(self, begins_B: Tensor) -> None:
        """Of rows that follow none, nothing is remembered."""
        self.filled = self.filled.masked_fill(begins_B.bool(), 0)

    def moved_on(self) -> Past:
        """The same after the row at hand."""
        length, places = self.length, len(next(iter(self.seen.values())))
        states = {
            layer: torch.cat([before[places:], self.seen[layer][-length:]]) for layer, before in self.states.items()
        }
        filled = (self.filled + places).clamp(max=length)
        return Past(states, filled, farthest=self.farthest, same_length=self.same_length)
