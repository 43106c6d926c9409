"""Order of sequences cut from concatenated documents, or of complete documents, as in `order.Order`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from megaptm.data.order import Order, ShardWindow
from megaptm.data.shards import TOKENS, Corpus, Shard
from megaptm.errors import UserError
from megaptm.objectives.objective import DocumentSlice, SequenceWindow


class NeighborReader(Protocol):
    """Interface of readers of retrieved neighbors, for the documents of a split."""

    def sample(self, document: int, rng: np.random.Generator) -> Iterator[DocumentSlice]:
        """Sample documents that were retrieved as neighbors of `document`, each with its kind."""
        ...


class StreamOrder(Order):
    """Order of sequences cut from the concatenated documents of an epoch, across documents and windows. The remainder
    at the end is dropped."""

    def __init__(self, corpus: Corpus, split: str, *, cut: SequenceWindow, **options: Any):
        self.cut = cut
        super().__init__(corpus, split, **options)
        self.per_epoch = max(0, self.total - cut.lookahead) // cut.stride
        if not self.per_epoch:
            raise UserError(
                f"{corpus.name} has {self.total:,} tokens in its split `{split}`, less than one sequence of "
                f"{cut.stride + cut.lookahead}: lower data.sequence or build the corpus from more text."
            )

    def piece(self, epoch: int, position: int) -> list[DocumentSlice]:
        return self._sequence(epoch, *self._find(epoch, position))

    def _sequence(self, epoch: int, window: int, index: int) -> list[DocumentSlice]:
        """Return the sequence with this index before shuffling, which starts in a window."""
        start = index * self.cut.stride
        stop = start + self.cut.stride + self.cut.lookahead
        edges = self._epoch(epoch).measures
        parts: list[DocumentSlice] = []
        while start < stop:
            end = min(stop, int(edges[window + 1]))
            parts += self._slices_between(
                self._window((epoch, window)), start - int(edges[window]), end - int(edges[window])
            )
            start, window = end, window + 1
        return parts

    def _slices_between(self, window: ShardWindow, start: int, stop: int) -> Iterator[DocumentSlice]:
        """Yield the slices of documents between two offsets of a window."""
        number = int(np.searchsorted(window.edges, start, side="right")) - 1
        while start < stop:
            first, after = window.edges[number : number + 2].tolist()
            length, end = after - first - self.cut.slots, min(stop, after)
            begin, finish = min(start - first, length), min(end - first, length)
            shard = self.shards.get(int(window.shard[number]))
            document = int(window.document[number])
            tokens = shard.tokens(document, begin, finish)
            annotations = {name: shard.annotation_within(name, document, begin, finish) for name in self.annotations}
            yield DocumentSlice(tokens, slots=end - start - (finish - begin), annotations=annotations)
            start, number = end, number + 1

    def measure_documents(self, tokens: np.ndarray) -> np.ndarray:
        return tokens + self.cut.slots

    def _shard_measures(self) -> np.ndarray:
        return self.shards.table_column("tokens") + self.cut.slots * self.shards.table_column("samples")

    def _samples_before(self, measures: np.ndarray) -> np.ndarray:
        return np.minimum(-(-measures // self.cut.stride), self.per_epoch)


class DocumentOrder(StreamOrder):
    """Order of sequences of complete documents: those that start in the sequence's stretch of the stream.

    A random share `random_segment_prob` of sequences is followed by another document of the same window, marked
    `other_segment`. Some documents that were `retrieved` for the first follow last.
    """

    def __init__(
        self,
        corpus: Corpus,
        split: str,
        *,
        random_segment_prob: float = 0.0,
        retrieved: NeighborReader | None = None,
        **options: Any,
    ):
        self.random_segment_prob, self.retrieved = random_segment_prob, retrieved
        super().__init__(corpus, split, **options)
        self._before = np.concatenate(([0], np.cumsum(self.shards.table_column("samples"))))
        """Number of documents before each shard, int64 [shards + 1]."""

    def piece(self, epoch: int, position: int) -> list[DocumentSlice]:
        window, index = self._find(epoch, position)
        start, stop = index * self.cut.stride, (index + 1) * self.cut.stride
        edges = self._epoch(epoch).measures
        documents: list[DocumentSlice] = []
        other: DocumentSlice | None = None
        similar: list[DocumentSlice] = []
        while start < stop:
            table, before, end = self._window((epoch, window)), int(edges[window]), min(stop, int(edges[window + 1]))
            first, after = np.searchsorted(table.edges, (start - before, end - before)).tolist()
            if first < after:
                documents += [self._document(table, number) for number in range(first, after)]
                other = self._random_document(epoch, position, table, first)
                similar = self._retrieved_documents(epoch, position, table, first)
            start, window = end, window + 1
        return [*documents, *([] if other is None else [replace(other, other_segment=True)]), *similar]

    def _retrieved_documents(self, epoch: int, position: int, window: ShardWindow, own: int) -> list[DocumentSlice]:
        """Return the documents retrieved for a document of a window."""
        if self.retrieved is None:
            return []
        number = int(self._before[window.shard[own]]) + int(window.document[own])
        return [*self.retrieved.sample(number, self._generator("retrieved", epoch, position))]

    def _random_document(self, epoch: int, position: int, window: ShardWindow, own: int) -> DocumentSlice | None:
        """Return a random other document of the window, for a share `random_segment_prob` of positions; otherwise
        None."""
        if not self.random_segment_prob or len(window.document) < 2:
            return None
        rng = self._generator("elsewhere", epoch, position)
        if rng.random() >= self.random_segment_prob:
            return None
        other = int(rng.integers(len(window.document) - 1))
        return self._document(window, other + (other >= own))

    def documents(self, shard: int) -> Iterator[DocumentSlice]:
        """Yield the documents of a shard as sequences, in file order."""
        opened = self.shards.get(shard)
        return (self._read(opened, document) for document in range(len(opened)))

    def _document(self, window: ShardWindow, number: int) -> DocumentSlice:
        return self._read(self.shards.get(int(window.shard[number])), int(window.document[number]))

    def _read(self, shard: Shard, document: int) -> DocumentSlice:
        length = int(shard.index[document, TOKENS])
        annotations = {name: shard.annotation_within(name, document, 0, length) for name in self.annotations}
        files = {name: content for name in self.blobs if (content := shard.blob(name, document))}
        tokens = shard.tokens(document, 0, length)
        location = f"document {document:,} of {shard.path.name}" if files else ""
        return DocumentSlice(tokens, slots=self.cut.slots, annotations=annotations, blobs=files, location=location)

    def measure_documents(self, tokens: np.ndarray) -> np.ndarray:
        full_measure = super().measure_documents(tokens)
        return (
            full_measure
            if self.cut.max_document_length is None
            else np.minimum(full_measure, self.cut.max_document_length)
        )

    def _shard_measures(self) -> np.ndarray:
        if self.cut.max_document_length == 1:
            return self.shards.table_column("samples")
        return super()._shard_measures() if self.cut.max_document_length is None else self._count_by_document()
