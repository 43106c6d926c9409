"""How often words come near each other: counted once, exactly, by all ranks; and the order in which a run reads it."""

# T tokens, P pairs, V words

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from megaptm.data.seeds import generator
from megaptm.families.words import LANES
from megaptm.objectives.pairs import GloVe
from megaptm.words.sharded_table import Exchange, lane_owners

CorpusTexts = Iterable[tuple[float, Iterator[Sequence[np.ndarray]]]]
"""Of each corpus the share that its counts have, and this rank's part of it: some documents at a time."""


COUNTED_AT_ONCE = 1 << 18
"""Words: with windows of ten, five million pairs."""


@dataclass(frozen=True)
class Pairs:
    """Some pairs that a rank learns, round after round: see `RotatingTable`."""

    words: np.ndarray
    """int64 [P]"""
    contexts: np.ndarray
    """int64 [P]"""
    counts: np.ndarray
    """float64 [P]"""
    rounds: np.ndarray
    """int64 [LANES + 1]: where the pairs of each round begin."""


@dataclass(frozen=True)
class PairCounts:
    """Sums of counts by pair, in units of which each count is a whole number: no order of adding changes them."""

    keys: np.ndarray
    """int64 [P], rising: word x V + context"""
    counts: np.ndarray
    """int64 [P]"""

    @classmethod
    def summed(cls, *parts: PairCounts) -> PairCounts:
        keys, counts = (np.concatenate([getattr(part, name) for part in parts]) for name in ("keys", "counts"))
        order = np.argsort(keys, kind="stable")
        keys, counts = keys[order], counts[order]
        first = np.flatnonzero(np.diff(keys, prepend=-1))
        return cls(keys[first], np.add.reduceat(counts, first) if len(first) else counts)


NO_PAIRS = PairCounts(np.zeros(0, np.int64), np.zeros(0, np.int64))


class PairSum:
    """A growing sum of counts."""

    def __init__(self) -> None:
        self._held, self._waiting, self._number = NO_PAIRS, [NO_PAIRS], 0

    def add(self, counted: PairCounts) -> None:
        self._waiting += [counted]
        self._number += len(counted.keys)
        # Only once there is as much again to be put in: each pair is then moved a few times in all.
        if self._number >= len(self._held.keys):
            self.total()

    def total(self) -> PairCounts:
        self._held = PairCounts.summed(self._held, *self._waiting)
        self._waiting, self._number = [NO_PAIRS], 0
        return self._held


def unit_of(task: GloVe) -> int:
    """Into so many parts a count of 1 is divided, that 1/d of it is a whole number of them."""
    return math.lcm(*range(1, task.window + 1)) if task.distance_weighting else 1


def near(texts: Sequence[np.ndarray], takes_part: np.ndarray, task: GloVe) -> PairCounts:
    """Counts of the pairs in some documents; words that take no part, bool [V], leave no gap."""
    documents = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    tokens = np.concatenate([NO_PAIRS.keys, *texts]).astype(np.int64)
    stay = takes_part[tokens]
    tokens, documents, found = tokens[stay], documents[stay], PairSum()
    for start in range(0, len(tokens), COUNTED_AT_ONCE):
        found.add(_near(tokens[start:], documents[start:], len(takes_part), task))
    return found.total()


def _near(tokens: np.ndarray, documents: np.ndarray, vocabulary: int, task: GloVe) -> PairCounts:
    """Of the first `COUNTED_AT_ONCE` words with those behind them."""
    unit, found = unit_of(task), [NO_PAIRS]
    for distance in range(1, task.window + 1):
        behind = slice(distance, distance + COUNTED_AT_ONCE)
        right, number = tokens[behind], len(tokens[behind])
        together = documents[:number] == documents[behind]
        left, right = tokens[:number][together], right[together]
        each = np.full(len(left), unit // distance if task.distance_weighting else 1)
        found += [PairCounts(left * vocabulary + right, each)]
        if task.symmetric:
            found += [PairCounts(right * vocabulary + left, each)]
    return PairCounts.summed(*found)


def count_pairs(texts: CorpusTexts, takes_part: np.ndarray, task: GloVe, exchange: Exchange) -> PairCounts:
    """Of all ranks' texts the pairs whose words this rank holds; all ranks count at once."""
    owners, whole = lane_owners(exchange.ranks), PairSum()
    for share, some in texts:
        held = PairSum()
        for documents in _in_step(some, exchange):
            counted = near(documents, takes_part, task)
            owner = owners[counted.keys // len(takes_part) % LANES]
            sent = [np.flatnonzero(owner == rank) for rank in range(exchange.ranks)]
            both = (exchange.all_to_all([part[at] for at in sent]) for part in (counted.keys, counted.counts))
            for keys, counts in zip(*both, strict=True):
                held.add(PairCounts(keys, counts))
        sums = held.total()
        # What many ranks have counted is rounded once, so that their number does not show.
        shared = sums.counts if share == 1.0 else np.rint(sums.counts * share).astype(np.int64)
        whole.add(PairCounts(sums.keys[shared > 0], shared[shared > 0]))
    return whole.total()


def _in_step(some: Iterator[Sequence[np.ndarray]], exchange: Exchange) -> Iterator[Sequence[np.ndarray]]:
    """Until all ranks are through with theirs: who is earlier has no more documents."""
    while True:
        documents = next(some, None)
        if not exchange.all_gather(np.array([documents is not None])).any():
            return
        yield documents or []


@dataclass
class PairTable:
    """The pairs that a rank holds, and which of them each step reads: a function of the seed and the step, whoever
    holds them.

    An epoch is all pairs once. Each draws a number, which says in which step of the epoch it is read, and when: so a
    step has nearly as many pairs as another.
    """

    held: PairCounts
    vocabulary: int
    unit: float
    """A count is so many of the units of `held`."""
    seed: tuple[int | str, ...]
    pairs: int
    """Of all ranks."""
    per_step: int
    """Pairs of a step, of all ranks."""
    _epoch: int = field(default=-1, init=False)
    _order: np.ndarray = field(init=False)
    _steps: np.ndarray = field(init=False)

    @property
    def steps(self) -> int:
        """Of an epoch."""
        return max(1, round(self.pairs / self.per_step))

    def of_step(self, step: int) -> Pairs:
        """What this rank learns in step 0, 1, 2 ...: by rounds, and in each in the order that was drawn."""
        epoch, at = divmod(step, self.steps)
        if epoch != self._epoch:
            self._deal(epoch)
        chosen = self._order[slice(*self._steps[at : at + 2])]
        words, contexts = np.divmod(self.held.keys[chosen], self.vocabulary)
        rounds = np.searchsorted(_rounds(words, contexts), np.arange(LANES + 1))
        return Pairs(words, contexts, self.held.counts[chosen] / self.unit, rounds)

    def _deal(self, epoch: int) -> None:
        """The order of an epoch: by step, by round, by what each pair has drawn."""
        keys = self.held.keys
        with np.errstate(over="ignore"):
            drawn = _mixed(keys.astype(np.uint64) ^ generator(*self.seed, epoch).integers(1 << 64, dtype=np.uint64))
        step = ((drawn >> np.uint64(32)) * np.uint64(self.steps) >> np.uint64(32)).astype(np.int64)
        self._order = np.lexsort((drawn, _rounds(*np.divmod(keys, self.vocabulary)), step))
        self._steps = np.searchsorted(step[self._order], np.arange(self.steps + 1))
        self._epoch = epoch


def _rounds(words: np.ndarray, contexts: np.ndarray) -> np.ndarray:
    """int64 [P]: in which round the lanes of each pair are together."""
    return (contexts - words) % LANES


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """uint64 [P]: 64 random bits of each number, by the last steps of splitmix64."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
