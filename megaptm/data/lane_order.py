"""Rows that go on where others ended: an epoch's documents laid end to end, cut into as many lanes as read at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from megaptm.data.lru import LRUCache
from megaptm.data.shards import Corpus
from megaptm.data.stream_order import StreamOrder
from megaptm.errors import UserError
from megaptm.objectives.objective import DocumentSlice, RowWindow

SHUFFLED = 1
"""Shards whose documents are shuffled together: lanes lie far from each other, and each keeps its own open."""


class LaneOrder(StreamOrder):
    """Position p is row p // lanes of lane p % lanes: consecutive stretches of the stream, each read in its order.

    With `both_ways` every second lane is read from its end. Of a share `elsewhere` of rows, drawn at random, what
    another row near by reads comes behind their own. An epoch deals documents anew and begins every lane anew; rows
    that do not fill all lanes are left out.
    """

    def __init__(
        self,
        corpus: Corpus,
        split: str,
        *,
        cut: RowWindow,
        lanes: int,
        both_ways: bool,
        elsewhere: float = 0.0,
        **options: Any,
    ):
        super().__init__(corpus, split, cut=cut, **{**options, "window": SHUFFLED})
        self.lanes, self.rows, self.both_ways, self.elsewhere = lanes, self.per_epoch, both_ways, elsewhere
        self.per_lane = self.rows // lanes
        if not self.per_lane:
            raise UserError(
                f"{corpus.name} holds {self.rows} rows in its split `{split}`, and {lanes} rows of a batch each read a "
                "text of their own on and on: lower train.batch, shorten data.sequence, or build the corpus from more "
                "text."
            )
        self.per_epoch = self.per_lane * lanes
        # Each lane is in a window of its own, or between two.
        self.shards.get = LRUCache(self.shards.get.build, 2 * lanes * SHUFFLED + 2)
        self._window = LRUCache(self._shuffle, 2 * lanes + 2)

    def piece(self, epoch: int, position: int) -> list[DocumentSlice]:
        first, *others = super().piece(epoch, position)
        mine = [replace(first, begins=position < self.lanes, backward=self._backward(position)), *others]
        return [*mine, *self._from_elsewhere(epoch, position)]

    def _from_elsewhere(self, epoch: int, position: int) -> Iterator[DocumentSlice]:
        """Of some rows what another one reads, which shares no text with them: of their own window, so that no other
        shard is opened for it, or of the next where that has no other row."""
        if not self.elsewhere:
            return
        window, row = self._find(epoch, position)
        rng = self._generator("elsewhere", epoch, row)
        if rng.random() >= self.elsewhere:
            return
        samples, reach = self._epoch(epoch).samples, -(-self.cut.lookahead // self.cut.stride)
        for near in (window, (window + 1) % (len(samples) - 1)):
            others = np.arange(samples[near], samples[near + 1])
            others = others[abs(others - row) > reach]
            if len(others):
                yield from (replace(part, elsewhere=True) for part in self._row(epoch, near, int(rng.choice(others))))
                return

    def _backward(self, position: int) -> bool:
        return self.both_ways and position % self.lanes % 2 == 1

    def _find(self, epoch: int, position: int) -> tuple[int, int]:
        step, lane = divmod(position, self.lanes)
        if self._backward(position):
            step = self.per_lane - 1 - step
        row = lane * self.per_lane + step
        return int(np.searchsorted(self._epoch(epoch).samples, row, side="right")) - 1, row

    def _samples_before(self, measures: np.ndarray) -> np.ndarray:
        return np.minimum(-(-measures // self.cut.stride), self.rows)


class BothEndsOrder(LaneOrder):
    """Each lane is read from its beginning and from its end at once: behind what a row reads of the one comes, marked
    `backward`, what it reads of the other."""

    def __init__(self, corpus: Corpus, split: str, **options: Any):
        super().__init__(corpus, split, both_ways=False, **options)
        self.shards.get = LRUCache(self.shards.get.build, 4 * self.lanes * SHUFFLED + 2)
        self._window = LRUCache(self._shuffle, 4 * self.lanes + 2)

    def piece(self, epoch: int, position: int) -> list[DocumentSlice]:
        step, lane = divmod(position, self.lanes)
        mirrored = (self.per_lane - 1 - step) * self.lanes + lane
        from_end = (replace(part, backward=True) for part in super().piece(epoch, mirrored))
        return [*super().piece(epoch, position), *from_end]
