"""Sequences that continue where others ended: an epoch's documents are concatenated and cut into lanes, one per
sequence of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from megaptm.data.lru import LRUCache
from megaptm.data.shards import Corpus
from megaptm.data.stream_order import StreamOrder
from megaptm.errors import UserError
from megaptm.objectives.objective import DocumentSlice, SequenceWindow

SHUFFLED = 1
"""Number of shards shuffled together in an order of lanes. Lanes are far apart, and each keeps its own shards open."""


class LaneOrder(StreamOrder):
    """Order of lanes: position p is sequence p // lanes of lane p % lanes. A lane is a stretch of the stream, read in
    order.

    With `alternating`, every second lane is read backward. A random share `random_segment_prob` of sequences is
    followed by the text of another sequence nearby. Each epoch shuffles the documents again and restarts all lanes;
    sequences that do not fill all lanes are dropped.
    """

    def __init__(
        self,
        corpus: Corpus,
        split: str,
        *,
        cut: SequenceWindow,
        lanes: int,
        alternating: bool,
        random_segment_prob: float = 0.0,
        **options: Any,
    ):
        super().__init__(corpus, split, cut=cut, **{**options, "window": SHUFFLED})
        self.lanes, self.alternating, self.random_segment_prob = lanes, alternating, random_segment_prob
        self.num_sequences = self.per_epoch
        self.per_lane = self.num_sequences // lanes
        if not self.per_lane:
            raise UserError(
                f"{corpus.name} has {self.num_sequences} sequences in its split `{split}`, but each of the {lanes} "
                "sequences of a batch continues through its own part: lower train.batch or data.sequence, or build the "
                "corpus from more text."
            )
        self.per_epoch = self.per_lane * lanes
        # Each lane is within one window or between two.
        self.shards.get = LRUCache(self.shards.get.build, 2 * lanes * SHUFFLED + 2)
        self._window = LRUCache(self._shuffle, 2 * lanes + 2)

    def piece(self, epoch: int, position: int) -> list[DocumentSlice]:
        first, *following = super().piece(epoch, position)
        own = [replace(first, starts_lane=position < self.lanes, backward=self._is_backward(position)), *following]
        return [*own, *self._random_segment(epoch, position)]

    def _random_segment(self, epoch: int, position: int) -> Iterator[DocumentSlice]:
        """Yield the text of another sequence for a random share of sequences. The two share no text.

        The other sequence is from the same window, so that no further shard is opened, or from the next if there is
        none.
        """
        if not self.random_segment_prob:
            return
        window, index = self._find(epoch, position)
        rng = self._generator("elsewhere", epoch, index)
        if rng.random() >= self.random_segment_prob:
            return
        samples, reach = self._epoch(epoch).samples, -(-self.cut.lookahead // self.cut.stride)
        for near in (window, (window + 1) % (len(samples) - 1)):
            candidates = np.arange(samples[near], samples[near + 1])
            candidates = candidates[abs(candidates - index) > reach]
            if len(candidates):
                yield from (
                    replace(part, other_segment=True)
                    for part in self._sequence(epoch, near, int(rng.choice(candidates)))
                )
                return

    def _is_backward(self, position: int) -> bool:
        return self.alternating and position % self.lanes % 2 == 1

    def _find(self, epoch: int, position: int) -> tuple[int, int]:
        step, lane = divmod(position, self.lanes)
        if self._is_backward(position):
            step = self.per_lane - 1 - step
        index = lane * self.per_lane + step
        return int(np.searchsorted(self._epoch(epoch).samples, index, side="right")) - 1, index

    def _samples_before(self, measures: np.ndarray) -> np.ndarray:
        return np.minimum(-(-measures // self.cut.stride), self.num_sequences)


class BothEndsOrder(LaneOrder):
    """Order of lanes that are read from both ends at once. A sequence is the next text from the start, followed by the
    next text from the end, marked `backward`."""

    def __init__(self, corpus: Corpus, split: str, **options: Any):
        super().__init__(corpus, split, alternating=False, **options)
        self.shards.get = LRUCache(self.shards.get.build, 4 * self.lanes * SHUFFLED + 2)
        self._window = LRUCache(self._shuffle, 4 * self.lanes + 2)

    def piece(self, epoch: int, position: int) -> list[DocumentSlice]:
        step, lane = divmod(position, self.lanes)
        mirrored = (self.per_lane - 1 - step) * self.lanes + lane
        from_end = (replace(part, backward=True) for part in super().piece(epoch, mirrored))
        return [*super().piece(epoch, position), *from_end]
