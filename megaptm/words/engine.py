"""Training engine of word vectors: tables are sharded over data ranks, and compiled code processes each sequence word
by word."""

# V words, U table rows that a sequence updates, D width

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from megaptm.checkpoint.tensors import TensorPiece, TensorReader
from megaptm.config import Layout
from megaptm.families.words import WordSpec
from megaptm.objectives.windows import CBOW, HUFFMAN, SOFTMAX, WordWindows
from megaptm.parallel.groups import Ranks, open_groups
from megaptm.parallel.step_result import REMEDY, DivergedError, StepResult
from megaptm.processes import keep_freed_memory
from megaptm.words import kernels
from megaptm.words.sharded_table import Exchange, RowChange, ShardedTable
from megaptm.words.subwords import bags_of
from megaptm.words.vocabulary import WordTables, counts_piece, read_counts, word_tables, words_to_learn

NONE, NOWHERE = np.zeros(0, np.int64), np.zeros(0, np.int32)

CountWords = Callable[[Exchange], np.ndarray]
"""Function that all ranks call together -> int64 [V]: frequency of each word in the corpora."""


DIVERGED = 4.0
"""Multiple of the loss of untrained vectors above which a run counts as diverged. Its values may stay finite, since
scores beyond the sigmoid table cause no update."""


@dataclass(frozen=True)
class WordRow:
    """Sequence of words after subsampling."""

    kept: np.ndarray
    borders: np.ndarray
    """Document index of each word."""
    state: np.uint64
    """Generator state from which windows and noise are sampled."""


class WordEngine:
    """Training engine of word vectors on this data rank.

    Each sequence is processed alone, word by word, starting from the tables at the start of the step. Then the changes
    of all sequences are added in order, so a step gives the same result on any number of ranks. A step with a single
    sequence updates the tables in place, as the released code does.
    """

    def __init__(
        self,
        spec: WordSpec,
        layout: Layout,
        task: WordWindows,
        *,
        seed: int,
        special: frozenset[int],
        names: Sequence[str] = (),
        count_words: CountWords,
        timeout_minutes: float = 30.0,
    ) -> None:
        """`special`: ids that are no words. `names`: names of all ids, for their subwords. `count_words` is called when
        the tables are initialized; a checkpoint contains the counts."""
        keep_freed_memory()  # the arrays of a step are as large in the next one
        self.spec, self.task, self.seed = spec, task, seed
        self.losses: dict[str, float] = dict(task.losses)
        self.ranks: Ranks = open_groups(layout, timeout_minutes=timeout_minutes)
        self.exchange = Exchange.open(self.ranks, timeout_minutes)
        self._special, self._count_words = special, count_words
        size = spec.size
        words = spec.vocabulary + size.buckets
        self._in = ShardedTable("input", words + spec.positions, size.width, self.exchange)
        self._positions = words if spec.positions else kernels.NOTHING
        # A Huffman tree has one inner node less than words; its vectors are stored in the same table.
        self._out = ShardedTable("output", spec.vocabulary, size.width, self.exchange)
        self._places = tuple(np.zeros(table.rows, np.int32) for table in (self._in, self._out))
        self._bags = bags_of(names, size.ngrams, size.buckets) if size.buckets else (NONE, NONE)
        self._sigmoid, self._logarithm = kernels.tables()
        self.counts = NONE
        self._tables: WordTables

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Change the weight of the loss, which scales the updates."""
        self.losses = {name: weights[name] for name in self.losses}

    def fill(self) -> None:
        """Count the words of the corpora and set the initial vectors."""
        self._know(self._count_words(self.exchange))
        self._in.fill(self.seed, self.spec.family.initial / self.spec.size.width)
        if self.spec.positions:  # position weights start at 1
            numbers = self._in.numbers()
            self._in.flat[(numbers >= self._positions) & (numbers < self._in.rows)] = 1.0
        self._out.held[:] = 0.0

    def pieces(self) -> Iterator[TensorPiece]:
        yield self._in.piece()
        yield self._out.piece()
        if self.exchange.rank == 0:
            yield counts_piece(self.counts)

    def restore(self, reader: TensorReader, *, step: int) -> None:
        self._know(read_counts(reader, self.spec.vocabulary))
        self._in.restore(reader)
        self._out.restore(reader)

    def step(self, microbatches: list[Any] | None, *, step: int, lr: float) -> StepResult:
        """Train on this rank's sequences. Raise DivergedError on every process if the loss is not finite or shows
        divergence."""
        assert microbatches is not None
        rows = [*self._rows(microbatches)]
        rate = lr * next(iter(self.losses.values()))
        if self.exchange.ranks == 1 and len(rows) == 1:
            found = [self._learn(rows[0], (self._in.flat, self._out.flat), (NOWHERE, NOWHERE), rate)]
        else:
            found = self._learn_apart(rows, rate)
        result = self._result(found)
        (mean,) = result.losses.values()
        if not mean < DIVERGED * self._of_nothing:
            raise DivergedError(
                f"step {step + 1} has a loss of {mean:.4g}, where vectors that know nothing have "
                f"{self._of_nothing:.4g}, and was not saved: {REMEDY}"
            )
        return result

    def evaluate(self, microbatches: list[Any] | None) -> StepResult:
        assert microbatches is not None
        return self._result(self._learn_apart([*self._rows(microbatches)], None))

    def _know(self, counts: np.ndarray) -> None:
        words_to_learn(self.spec, counts, self._special, self.task)
        self.counts = counts
        self._tables = word_tables(counts, sorted(self._special), self.task)

    def _rows(self, microbatches: list[Any]) -> Iterator[WordRow]:
        for batch in microbatches:
            fields = (batch[name].numpy() for name in ("tokens", "document_ids", "seed"))
            for tokens, documents, seed in zip(*fields, strict=True):
                kept, borders = np.empty_like(tokens), np.empty_like(tokens)
                count, state = kernels.keep(tokens, documents, self._tables.thresholds, seed, kept, borders)
                yield WordRow(kept[:count], borders[:count], np.uint64(state))

    @property
    def _of_nothing(self) -> float:
        """Loss of untrained vectors: that of equal probabilities for all labels, or more."""
        if self.task.output == SOFTMAX:
            return math.log(len(self._tables.words))
        most = self._tables.points.shape[1] if self.task.output == HUFFMAN else 1 + self.task.negatives
        return most * math.log(2)

    def _learn(
        self,
        row: WordRow,
        tables: Sequence[np.ndarray],
        places: Sequence[np.ndarray],
        rate: float,
    ) -> tuple[float, int]:
        """Return loss and number of predictions of a sequence, and update the tables. `places`: row -> index in a
        partial table."""
        found: tuple[float, int] = kernels.learn(
            *(isinstance(self.task, CBOW), *tables, row.kept, row.borders, row.state, *self._drawn()),
            *(rate, self._sigmoid, self._logarithm, self.task.sigmoid == "exact", *places),
        )
        return found

    def _drawn(self) -> tuple[Any, ...]:
        """Return the arguments of windows, labels and subwords for the compiled loops."""
        tables, task = self._tables, self.task
        negatives = 0 if task.output in (HUFFMAN, SOFTMAX) else task.negatives
        answers = (negatives, tables.accept, tables.alias, tables.points, tables.codes, tables.words)
        return task.window, task.shrink, *answers, *self._bags, self._positions

    def _learn_apart(self, rows: list[WordRow], rate: float | None) -> list[tuple[float, int]]:
        """Train on each sequence alone, then add up their changes. With `rate` None the tables stay unchanged."""
        touched = [self._touched(row) for row in rows]
        asked = [_union([one[side][0] for one in touched]) for side in (0, 1)]
        begun = [table.fetch(some) for table, some in zip((self._in, self._out), asked, strict=True)]
        found: list[tuple[float, int]] = []
        changes: tuple[list[RowChange], ...] = ([], [])
        for row, rows_UR in zip(rows, touched, strict=True):
            before, after = [], []
            for side, (some, _) in enumerate(rows_UR):
                before.append(begun[side] if len(rows) == 1 else begun[side][np.searchsorted(asked[side], some)])
                after.append(before[-1].copy())
                self._places[side][some] = np.arange(len(some))
            found.append(self._learn(row, after, self._places, 0.0 if rate is None else rate))
            for side, (some, moves) in enumerate(rows_UR):
                np.subtract(after[side], before[side], out=after[side])
                changes[side].append(RowChange(some, moves, after[side]))
        if rate is not None:
            self._in.add(changes[0], rate)
            self._out.add(changes[1], rate)
        return found

    def _touched(self, row: WordRow) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return for either table the rows that a sequence updates, ascending, and the number of updates: int64 [U]
        twice."""
        moves = [np.zeros(table.rows, np.int64) for table in (self._in, self._out)]
        kernels.touch(isinstance(self.task, CBOW), row.kept, row.borders, row.state, *self._drawn(), *moves)
        return [(some, one[some]) for one in moves for some in [np.flatnonzero(one)]]

    def _result(self, mine: list[tuple[float, int]]) -> StepResult:
        """Return the result of all ranks, in sequence order."""
        loss, asked = self.exchange.all_gather(np.array(mine, np.float64)).reshape(-1, 2).sum(axis=0).tolist()
        ((name, weight),) = self.losses.items()
        mean = loss / max(asked, 1.0)
        return StepResult({name: mean}, weight * mean, None, {name: int(asked)})


def _union(rows: list[np.ndarray]) -> np.ndarray:
    return rows[0] if len(rows) == 1 else np.unique(np.concatenate(rows))
