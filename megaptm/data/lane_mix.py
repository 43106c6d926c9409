"""Mix in which each sequence of a batch continues through one corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from megaptm.data.lane_order import LaneOrder
from megaptm.data.mix import Mix, MixSource, SamplePosition
from megaptm.data.seeds import generator
from megaptm.errors import UserError


class LaneMix(Mix):
    """Sample i is sequence i % lanes of step i // lanes, and continues that sequence of the step before.

    Each sequence reads one corpus. The number of sequences per corpus follows from its weight.
    """

    def __init__(self, sources: Sequence[MixSource], **options: Any):
        super().__init__(sources, **options)
        numbers = [source.order.lanes for source in sources if isinstance(source.order, LaneOrder)]
        assert len(numbers) == len(sources)
        self.lanes = sum(numbers)
        dealt = np.repeat(np.arange(len(numbers)), numbers)
        self._source = generator(self.seed, "lanes").permutation(dealt)
        """int64 [lanes]: source of each sequence."""
        self._lane = np.empty(self.lanes, dtype=np.int64)
        self._lane[np.argsort(self._source, kind="stable")] = np.concatenate([np.arange(one) for one in numbers])
        self._numbers = numbers

    def locate(self, number: int) -> SamplePosition:
        step, row = divmod(number, self.lanes)
        source, lane = int(self._source[row]), int(self._lane[row])
        epoch, position = divmod(step * self._numbers[source] + lane, self.orders[source].per_epoch)
        return SamplePosition(source, epoch, position)

    def cursors(self, number: int) -> dict[str, int]:
        step, row = divmod(number, self.lanes)
        begun = np.bincount(self._source[:row], minlength=len(self.names)).tolist()
        counted = zip(self.names, self._numbers, begun, strict=True)
        return {name: step * lanes + here for name, lanes, here in counted}

    def samples_in(self, epochs: int) -> int:
        steps = (order.per_epoch // lanes for order, lanes in zip(self.orders, self._numbers, strict=True))
        return min(steps) * epochs * self.lanes


def deal_lanes(weights: Mapping[str, float], lanes: int) -> dict[str, int]:
    """Return corpus -> number of sequences per batch, at least one. The remainder goes to those that were rounded down
    most."""
    if len(weights) > lanes:
        raise UserError(
            f"data.mix has {len(weights)} corpora, and each row of a batch of {lanes} reads one of them on and on: "
            "raise train.batch, or leave corpora out."
        )
    shares = np.array([*weights.values()], dtype=float)
    if not (np.isfinite(shares).all() and (shares > 0).all()):
        raise UserError(f"data.mix: weights must be positive numbers, not {[*weights.values()]}.")
    exact = shares / shares.sum() * lanes
    dealt = np.maximum(np.floor(exact).astype(int), 1)
    while (over := dealt.sum() - lanes) > 0:
        dealt[np.argmax(np.where(dealt > 1, dealt - exact, -np.inf))] -= min(over, 1)
    dealt[np.argsort(dealt - exact, kind="stable")[: lanes - dealt.sum()]] += 1
    return dict(zip(weights, dealt.tolist(), strict=True))
