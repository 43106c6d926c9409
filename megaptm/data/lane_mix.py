"""Mix in which each sequence of a batch continues through one corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from megaptm.data.lane_order import LaneOrder
from megaptm.data.mix import Mix, MixSource, SamplePosition
from megaptm.data.seeds import seeded_generator
from megaptm.errors import UserError


class LaneMix(Mix):
    """Mix in which sample i is sequence i % lanes of step i // lanes, and continues that sequence of the step before.

    Each sequence reads one corpus. The number of sequences per corpus follows from its weight.
    """

    def __init__(self, sources: Sequence[MixSource], **options: Any):
        super().__init__(sources, **options)
        lanes = [source.order.lanes for source in sources if isinstance(source.order, LaneOrder)]
        assert len(lanes) == len(sources)
        self.lanes = sum(lanes)
        self._source = seeded_generator(self.seed, "lanes").permutation(np.repeat(np.arange(len(lanes)), lanes))
        """Source of each lane, int64 [lanes]."""
        self._lane = np.empty(self.lanes, dtype=np.int64)
        self._lane[np.argsort(self._source, kind="stable")] = np.concatenate([*map(np.arange, lanes)])
        self._lanes = lanes
        """Number of lanes per source."""

    def locate(self, sample: int) -> SamplePosition:
        step, index = divmod(sample, self.lanes)
        source, lane = int(self._source[index]), int(self._lane[index])
        epoch, position = divmod(step * self._lanes[source] + lane, self.orders[source].per_epoch)
        return SamplePosition(source, epoch, position)

    def cursors(self, sample: int) -> dict[str, int]:
        step, index = divmod(sample, self.lanes)
        started = np.bincount(self._source[:index], minlength=len(self.names)).tolist()
        counted = zip(self.names, self._lanes, started, strict=True)
        return {name: step * lanes + here for name, lanes, here in counted}

    def samples_in(self, epochs: int) -> int:
        steps = (order.per_epoch // lanes for order, lanes in zip(self.orders, self._lanes, strict=True))
        return min(steps) * epochs * self.lanes


def assign_lanes(weights: Mapping[str, float], lanes: int) -> dict[str, int]:
    """Assign the sequences of a batch to corpora: return corpus -> number of sequences, at least one. The remainder
    goes to those that were rounded down most."""
    if len(weights) > lanes:
        raise UserError(
            f"data.mix has {len(weights)} corpora, but each of the {lanes} sequences of a batch continues through one "
            "corpus: raise train.batch, or remove corpora."
        )
    shares = np.array([*weights.values()], dtype=float)
    if not (np.isfinite(shares).all() and (shares > 0).all()):
        raise UserError(f"data.mix: weights must be positive numbers, not {[*weights.values()]}.")
    exact = shares / shares.sum() * lanes
    assigned = np.maximum(np.floor(exact).astype(int), 1)
    while (over := assigned.sum() - lanes) > 0:
        assigned[np.argmax(np.where(assigned > 1, assigned - exact, -np.inf))] -= min(over, 1)
    assigned[np.argsort(assigned - exact, kind="stable")[: lanes - assigned.sum()]] += 1
    return dict(zip(weights, assigned.tolist(), strict=True))
