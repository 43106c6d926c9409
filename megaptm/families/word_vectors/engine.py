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
from megaptm.families.word_vectors import WordSpec
from megaptm.families.word_vectors.compiled import kernels
from megaptm.families.word_vectors.sharded_table import Exchange, RowChange, ShardedTable
from megaptm.families.word_vectors.subwords import subword_rows
from megaptm.families.word_vectors.vocabulary import WordTables, counts_piece, read_counts, word_tables, words_to_learn
from megaptm.families.word_vectors.windows import CBOW, HUFFMAN, SOFTMAX, WordWindows
from megaptm.parallel.groups import Ranks, open_groups
from megaptm.parallel.step_result import REMEDY, DivergedError, StepResult

NO_SUBWORDS, FULL_TABLE = np.zeros(0, np.int64), np.zeros(0, np.int32)

CountWords = Callable[[Exchange], np.ndarray]
"""Function that all ranks call together to count words: frequency of each word in the corpora, int64 [V]."""


DIVERGED = 4.0
"""Multiple of the loss of untrained vectors above which a run counts as diverged. Its values may stay finite, since
scores beyond the sigmoid table cause no update."""


@dataclass(frozen=True)
class WordSequence:
    """Sequence of words after subsampling of frequent words."""

    words: np.ndarray
    documents: np.ndarray
    """Document index of each word."""
    state: np.uint64
    """Random generator state from which windows and noise words are sampled."""


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
        """Create the engine. `special`: ids that are no words. `names`: names of all ids, for their subwords.
        `count_words` is called when the tables are initialized; a checkpoint contains the counts."""
        self.spec, self.task, self.seed = spec, task, seed
        self.losses: dict[str, float] = dict(task.losses)
        self.ranks: Ranks = open_groups(layout, timeout_minutes=timeout_minutes)
        self.exchange = Exchange.open(self.ranks, timeout_minutes)
        self._special, self._count_words = special, count_words
        size = spec.size
        self._in = ShardedTable("input", spec.vocabulary + size.buckets, size.width, self.exchange)
        # A Huffman tree has one inner node less than words; its vectors are stored in the same table.
        self._out = ShardedTable("output", spec.vocabulary, size.width, self.exchange)
        self._row_index = tuple(np.zeros(table.rows, np.int32) for table in (self._in, self._out))
        self._subwords = subword_rows(names, size.ngrams, size.buckets) if size.buckets else (NO_SUBWORDS, NO_SUBWORDS)
        self._sigmoid, self._log_sigmoid = kernels.sigmoid_tables()
        self.counts = np.zeros(0, np.int64)
        self._tables: WordTables

    def set_loss_weights(self, weights: Mapping[str, float]) -> None:
        """Change the weight of the loss of word vectors, which scales the updates."""
        self.losses = {name: weights[name] for name in self.losses}

    def init_weights(self) -> None:
        """Count the words of the corpora and set the initial word vectors."""
        self._set_counts(self._count_words(self.exchange))
        self._in.init_weights(self.seed, self.spec.family.init_bound / self.spec.size.width)
        self._out.held[:] = 0.0

    def pieces(self) -> Iterator[TensorPiece]:
        yield self._in.piece()
        yield self._out.piece()
        if self.exchange.rank == 0:
            yield counts_piece(self.counts)

    def check_replicas(self) -> None:
        """Do nothing: the tables are sharded over data ranks, without replicas."""

    def restore(self, reader: TensorReader, *, step: int) -> None:
        self._set_counts(read_counts(reader, self.spec.vocabulary))
        self._in.restore(reader)
        self._out.restore(reader)

    def train_step(self, microbatches: list[Any] | None, *, step: int, lr: float) -> StepResult:
        """Train word vectors on this rank's sequences. Raise DivergedError on every process if the loss is not finite
        or shows divergence."""
        assert microbatches is not None
        sequences = [*self._subsample_words(microbatches)]
        rate = lr * next(iter(self.losses.values()))
        if self.exchange.ranks == 1 and len(sequences) == 1:
            tables = self._in.flat, self._out.flat
            results = [self._train_sequence(sequences[0], tables, (FULL_TABLE, FULL_TABLE), rate)]
        else:
            results = self._train_separately(sequences, rate)
        result = self._combine_losses(results)
        (mean,) = result.losses.values()
        if not mean < DIVERGED * self._untrained_mean:
            raise DivergedError(
                f"step {step + 1} has a loss of {mean:.4g}, but untrained vectors have {self._untrained_mean:.4g}. "
                f"The step was not saved: {REMEDY}"
            )
        return result

    def evaluate(self, microbatches: list[Any] | None) -> StepResult:
        assert microbatches is not None
        return self._combine_losses(self._train_separately([*self._subsample_words(microbatches)], None))

    def _set_counts(self, counts: np.ndarray) -> None:
        words_to_learn(self.spec, counts, self._special, self.task)
        self.counts = counts
        self._tables = word_tables(counts, sorted(self._special), self.task)

    def _subsample_words(self, microbatches: list[Any]) -> Iterator[WordSequence]:
        for batch in microbatches:
            fields = (batch[name].numpy() for name in ("tokens", "document_ids", "seed"))
            for tokens, document_ids, seed in zip(*fields, strict=True):
                words, documents = np.empty_like(tokens), np.empty_like(tokens)
                count, state = kernels.subsample(tokens, document_ids, self._tables.thresholds, seed, words, documents)
                yield WordSequence(words[:count], documents[:count], np.uint64(state))

    @property
    def _untrained_mean(self) -> float:
        """Return the mean loss of untrained word vectors: that of equal probabilities for all labels, or more."""
        if self.task.output == SOFTMAX:
            return math.log(len(self._tables.softmax_words))
        max_labels = self._tables.points.shape[1] if self.task.output == HUFFMAN else 1 + self.task.negatives
        return max_labels * math.log(2)

    def _train_sequence(
        self,
        sequence: WordSequence,
        tables: Sequence[np.ndarray],
        row_index: Sequence[np.ndarray],
        rate: float,
    ) -> tuple[float, int]:
        """Train on a sequence: update the word vector tables, and return loss and number of predictions. `row_index`:
        row -> index in a partial table."""
        result: tuple[float, int] = kernels.train_words(
            *(self._window_task(), *tables, sequence.words, sequence.documents, sequence.state),
            *(rate, self._sigmoid, self._log_sigmoid, self.task.sigmoid == "exact", *row_index),
        )
        return result

    def _window_task(self) -> kernels.WindowTask:
        tables, task = self._tables, self.task
        negatives = 0 if task.output in (HUFFMAN, SOFTMAX) else task.negatives
        starts, pieces = self._subwords
        return kernels.WindowTask(
            *(isinstance(task, CBOW), task.window, task.shrink, negatives, tables.accept, tables.alias),
            *(tables.points, tables.codes, tables.softmax_words, starts, pieces),
        )

    def _train_separately(self, sequences: list[WordSequence], rate: float | None) -> list[tuple[float, int]]:
        """Train word vectors on each sequence alone, then add up their changes. With `rate` None the tables stay
        unchanged."""
        tables = self._in, self._out
        updates = [self._count_updates(sequence) for sequence in sequences]
        fetched_rows = [_union_of_rows([both[side][0] for both in updates]) for side in (0, 1)]
        initial = [table.fetch(rows) for table, rows in zip(tables, fetched_rows, strict=True)]
        results: list[tuple[float, int]] = []
        changes: tuple[list[RowChange], ...] = ([], [])
        for sequence, both in zip(sequences, updates, strict=True):
            before, after = [], []
            for side, (rows, _) in enumerate(both):
                before.append(
                    initial[side] if len(sequences) == 1 else initial[side][np.searchsorted(fetched_rows[side], rows)]
                )
                after.append(before[-1].copy())
                self._row_index[side][rows] = np.arange(len(rows))
            results.append(self._train_sequence(sequence, after, self._row_index, 0.0 if rate is None else rate))
            for side, (rows, num_updates) in enumerate(both):
                np.subtract(after[side], before[side], out=after[side])
                changes[side].append(RowChange(rows, num_updates, after[side]))
        if rate is not None:
            for table, table_changes in zip(tables, changes, strict=True):
                table.add(table_changes, rate)
        return results

    def _count_updates(self, sequence: WordSequence) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return for either word vector table the rows that a sequence updates, ascending, and the number of updates:
        int64 [U] twice."""
        counts = [np.zeros(table.rows, np.int64) for table in (self._in, self._out)]
        kernels.count_updates(self._window_task(), sequence.words, sequence.documents, sequence.state, *counts)
        return [(rows, table_counts[rows]) for table_counts in counts for rows in [np.flatnonzero(table_counts)]]

    def _combine_losses(self, results: list[tuple[float, int]]) -> StepResult:
        """Return the combined loss of word vectors over all ranks, in sequence order."""
        gathered = self.exchange.all_gather(np.array(results, np.float64))
        loss, predictions = gathered.reshape(-1, 2).sum(axis=0).tolist()
        ((name, weight),) = self.losses.items()
        mean = loss / max(predictions, 1.0)
        return StepResult({name: mean}, weight * mean, None, {name: int(predictions)})


def _union_of_rows(rows: list[np.ndarray]) -> np.ndarray:
    return rows[0] if len(rows) == 1 else np.unique(np.concatenate(rows))
