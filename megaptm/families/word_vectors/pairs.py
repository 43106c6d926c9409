"""Co-occurrence counts of words, computed exactly by all ranks, and the order in which a run trains on them."""

# T tokens, P pairs, V words

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from megaptm.data.seeds import seeded_generator
from megaptm.families.word_vectors import LANES
from megaptm.families.word_vectors.glove import GloVe
from megaptm.families.word_vectors.sharded_table import Exchange, lane_owners

CorpusTexts = Iterable[tuple[float, Iterator[Sequence[np.ndarray]]]]
"""Type of the texts to count: for each corpus the weight of its counts, and this rank's documents in batches."""


WORDS_PER_PASS = 1 << 18
"""Number of words per pass that counts co-occurrences: with windows of ten, five million pairs."""


@dataclass(frozen=True)
class Pairs:
    """Co-occurrence pairs that a rank trains on, by rounds: see `RotatingTable`."""

    words: np.ndarray
    """Words of the pairs, int64 [P]."""
    contexts: np.ndarray
    """Context words of the pairs, int64 [P]."""
    counts: np.ndarray
    """Counts of the pairs, float64 [P]."""
    rounds: np.ndarray
    """Index of the first pair of each round, int64 [LANES + 1]."""


@dataclass(frozen=True)
class PairCounts:
    """Co-occurrence counts by pair, in units that make every count an integer, so that sums do not depend on the
    order."""

    keys: np.ndarray
    """Pairs in ascending order, int64 [P]: word x V + context."""
    counts: np.ndarray
    """Counts of the pairs in units, int64 [P]."""

    @classmethod
    def add_up(cls, *parts: PairCounts) -> PairCounts:
        keys, counts = (np.concatenate([getattr(part, name) for part in parts]) for name in ("keys", "counts"))
        order = np.argsort(keys, kind="stable")
        keys, counts = keys[order], counts[order]
        first = np.flatnonzero(np.diff(keys, prepend=-1))
        return cls(keys[first], np.add.reduceat(counts, first) if len(first) else counts)


NO_PAIRS = PairCounts(np.zeros(0, np.int64), np.zeros(0, np.int64))


class PairSum:
    """Sum of co-occurrence counts, accumulated over texts."""

    def __init__(self) -> None:
        self._merged, self._pending, self._num_pending = NO_PAIRS, [NO_PAIRS], 0

    def add(self, counted: PairCounts) -> None:
        self._pending += [counted]
        self._num_pending += len(counted.keys)
        # Merged only when the new counts are as many as the old ones, so each pair is moved only a few times.
        if self._num_pending >= len(self._merged.keys):
            self.summed_counts()

    def summed_counts(self) -> PairCounts:
        self._merged = PairCounts.add_up(self._merged, *self._pending)
        self._pending, self._num_pending = [NO_PAIRS], 0
        return self._merged


def units_per_count(task: GloVe) -> int:
    """Return the number of units per co-occurrence count of 1 (GloVe), such that each 1/distance is an integer number
    of units."""
    return math.lcm(*range(1, task.window + 1)) if task.distance_weighting else 1


def _count_texts(texts: Sequence[np.ndarray], takes_part: np.ndarray, task: GloVe) -> PairCounts:
    """Count GloVe's co-occurrence pairs of some documents. Words that do not take part (`takes_part`, bool [V]) are
    removed without a gap."""
    documents = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    tokens = np.concatenate([NO_PAIRS.keys, *texts]).astype(np.int64)
    selected = takes_part[tokens]
    tokens, documents, counts = tokens[selected], documents[selected], PairSum()
    for start in range(0, len(tokens), WORDS_PER_PASS):
        counts.add(_count_pass(tokens[start:], documents[start:], len(takes_part), task))
    return counts.summed_counts()


def _count_pass(tokens: np.ndarray, documents: np.ndarray, vocabulary: int, task: GloVe) -> PairCounts:
    """Return the co-occurrence pairs of the first `WORDS_PER_PASS` words with the words after them."""
    unit, parts = units_per_count(task), [NO_PAIRS]
    for distance in range(1, task.window + 1):
        shifted = slice(distance, distance + WORDS_PER_PASS)
        after, number = tokens[shifted], len(tokens[shifted])
        same_document = documents[:number] == documents[shifted]
        before, after = tokens[:number][same_document], after[same_document]
        counts = np.full(len(before), unit // distance if task.distance_weighting else 1)
        parts += [PairCounts(before * vocabulary + after, counts)]
        if task.symmetric:
            parts += [PairCounts(after * vocabulary + before, counts)]
    return PairCounts.add_up(*parts)


def count_pairs(texts: CorpusTexts, takes_part: np.ndarray, task: GloVe, exchange: Exchange) -> PairCounts:
    """Count GloVe's co-occurrence pairs of all ranks' texts, for words of this rank. All ranks call this together."""
    owners, total = lane_owners(exchange.ranks), PairSum()
    for weight, corpus in texts:
        held = PairSum()
        for documents in _read_in_lockstep(corpus, exchange):
            counted = _count_texts(documents, takes_part, task)
            owner = owners[counted.keys // len(takes_part) % LANES]
            sent = [np.flatnonzero(owner == rank) for rank in range(exchange.ranks)]
            received = (exchange.all_to_all([array[rows] for rows in sent]) for array in (counted.keys, counted.counts))
            for keys, counts in zip(*received, strict=True):
                held.add(PairCounts(keys, counts))
        sums = held.summed_counts()
        # Counts of all ranks are rounded once, after summing, so that the result does not depend on their number.
        weighted = sums.counts if weight == 1.0 else np.rint(sums.counts * weight).astype(np.int64)
        total.add(PairCounts(sums.keys[weighted > 0], weighted[weighted > 0]))
    return total.summed_counts()


def _read_in_lockstep(corpus: Iterator[Sequence[np.ndarray]], exchange: Exchange) -> Iterator[Sequence[np.ndarray]]:
    """Yield documents until all ranks have finished; ranks that finish earlier yield empty batches."""
    while True:
        documents = next(corpus, None)
        if not exchange.all_gather(np.array([documents is not None])).any():
            return
        yield documents or []


@dataclass
class PairTable:
    """Table of the co-occurrence pairs of a rank, and their assignment to steps: a function of seed and step,
    independent of the number of ranks.

    An epoch contains each pair once. A random number of each pair determines its step and its order within the step, so
    steps have nearly equally many pairs.
    """

    held: PairCounts
    vocabulary: int
    unit: float
    """Number of units in `held` per co-occurrence count of 1."""
    seed: tuple[int | str, ...]
    pairs: int
    """Number of co-occurrence pairs of all ranks."""
    per_step: int
    """Number of co-occurrence pairs per step, over all ranks."""
    _epoch: int = field(default=-1, init=False)
    _order: np.ndarray = field(init=False)
    _steps: np.ndarray = field(init=False)

    @property
    def steps(self) -> int:
        """Return the number of steps of an epoch of GloVe's pairs."""
        return max(1, round(self.pairs / self.per_step))

    def select(self, step: int) -> Pairs:
        """Select this rank's GloVe pairs of a step, by rounds, in random order within each."""
        epoch, step_of_epoch = divmod(step, self.steps)
        if epoch != self._epoch:
            self._shuffle_pairs(epoch)
        selected = self._order[slice(*self._steps[step_of_epoch : step_of_epoch + 2])]
        words, contexts = np.divmod(self.held.keys[selected], self.vocabulary)
        rounds = np.searchsorted(_rounds_of_pairs(words, contexts), np.arange(LANES + 1))
        return Pairs(words, contexts, self.held.counts[selected] / self.unit, rounds)

    def _shuffle_pairs(self, epoch: int) -> None:
        """Compute the order of the pairs in an epoch: by step, round, and random number."""
        keys = self.held.keys
        with np.errstate(over="ignore"):
            random_bits = _mix_bits(
                keys.astype(np.uint64) ^ seeded_generator(*self.seed, epoch).integers(1 << 64, dtype=np.uint64)
            )
        step = ((random_bits >> np.uint64(32)) * np.uint64(self.steps) >> np.uint64(32)).astype(np.int64)
        self._order = np.lexsort((random_bits, _rounds_of_pairs(*np.divmod(keys, self.vocabulary)), step))
        self._steps = np.searchsorted(step[self._order], np.arange(self.steps + 1))
        self._epoch = epoch


def _rounds_of_pairs(words: np.ndarray, contexts: np.ndarray) -> np.ndarray:
    """Return the round in which the lanes of each pair meet, int64 [P]."""
    return (contexts - words) % LANES


def _mix_bits(numbers: np.ndarray) -> np.ndarray:
    """Return 64 random bits for the number of each pair of words, by the last steps of splitmix64, uint64 [P]."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
