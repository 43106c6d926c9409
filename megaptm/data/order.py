"""The order of an epoch as a pure function: position -> the tokens of one sample, without reading what came before.

Shards are permuted; `window` of them at a time are opened and their documents shuffled together; the samples that start
in a window are shuffled too, or a long document would fill a whole batch. So an epoch reads the corpus from one end to
the other while only a window is in memory, and any position is found by two binary searches.
"""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from megaptm.batch import IGNORED
from megaptm.data.lru import LRUCache
from megaptm.data.seeds import generator
from megaptm.data.shards import TOKENS, Corpus, Shard, ShardInfo, Verify
from megaptm.errors import UserError
from megaptm.objectives.objective import DocumentSlice, Piece, RowWindow, SentenceGroup, marked

WINDOW = 8
"""Shards whose documents are shuffled together."""
REMEDIES = {
    "parts": "build it from sources with `parts` or `aligned`",
    "labels": "build it with annotate.labels, a list of what the note `label` of its documents may be",
    "phrases": "build it with annotate.phrases, a file of them",
    "tags": "build it with annotate.tags, a file of them",
}
"""What to do where a corpus lacks an annotation that is more than a switch."""
OF_GROUPS = ("parts", "labels")
"""Annotations that say what a group is, and are no marks in it."""
MOST_COUNTED = 100_000
"""Shards whose indexes are read to count pairs of sentences: a minute from a disk, longer from elsewhere."""


@dataclass(frozen=True)
class Epoch:
    """How one epoch deals the shards into windows."""

    number: int
    shards: np.ndarray
    """int64 [shards]: their order."""
    window: int
    """Shards of each window but the last, which may have fewer."""
    measures: np.ndarray
    """int64 [windows + 1]: the measure (see `Order.measure`) of all windows before each."""
    samples: np.ndarray
    """int64 [windows + 1]: samples that start before each window."""

    def __len__(self) -> int:
        """Number of windows."""
        return len(self.samples) - 1

    def shards_of(self, window: int) -> np.ndarray:
        """int64 [shards]: the shards of a window."""
        return self.shards[window * self.window : (window + 1) * self.window]


@dataclass(frozen=True)
class Window:
    """The documents of some shards, shuffled."""

    shard: np.ndarray
    """int32 [documents]: the shard each document lives in."""
    document: np.ndarray
    """int32 [documents]: its number there."""
    edges: np.ndarray
    """int64 [documents + 1]: the measure of all documents before each."""
    sample: np.ndarray
    """int64 [samples]: the shuffled order of the samples that start in this window."""


class OpenShards:
    """The shards of a split, opened when touched and checked the first time."""

    def __init__(self, corpus: Corpus, split: str, verify: Verify, most_open: int):
        self.corpus = corpus
        self.table = corpus.split(split).shards
        # A shard without documents has nothing to be found in it.
        self.rows = np.flatnonzero(self.table.rows["samples"])
        """int64 [shards]: the row of the table that says what each is."""
        self.verify = verify
        # One byte a shard, shared with the loader's forked processes: each shard is hashed once, whoever comes first.
        self._checked = mmap.mmap(-1, len(self.rows))
        self.get: LRUCache[int, Shard] = LRUCache(self._open, most_open)

    def __len__(self) -> int:
        return len(self.rows)

    def info(self, number: int) -> ShardInfo:
        return self.table[int(self.rows[number])]

    def sums(self, column: str) -> np.ndarray:
        """int64 [shards]: a column of the table."""
        return self.table.rows[column][self.rows]

    def _open(self, number: int) -> Shard:
        verify = "none" if self._checked[number] else self.verify
        shard = self.corpus.open_shard(self.info(number), verify)
        vocabulary = self.corpus.manifest.tokenizer["vocabulary"]
        if self.verify != "hash":
            shard.vocabulary = vocabulary  # its bytes may change between two reads, and nobody would know
        elif not self._checked[number]:
            shard.check_ids(vocabulary)
        self._checked[number] = 1
        return shard

    def bring(self, numbers: np.ndarray, *, wait: bool) -> None:
        """Have shards fetched that are elsewhere: those about to be opened, or without `wait` those that come next."""
        if self.corpus.mirror:
            self.corpus.bring([self.info(number) for number in numbers.tolist()], wait=wait)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_checked"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _checked=mmap.mmap(-1, len(state["rows"])))


class Order(ABC):
    """The samples of one split of one corpus, epoch after epoch."""

    per_epoch: int
    """Samples of one epoch, the same for all."""

    def __init__(
        self,
        corpus: Corpus,
        split: str,
        *,
        seed: int,
        annotations: tuple[str, ...] = (),
        verify: Verify = "hash",
        window: int = WINDOW,
        label: str = "",
    ):
        """Orders of one corpus with different labels are different. Pieces come with what is known of places in them,
        of the kinds in `annotations`."""
        self.annotations = annotations
        if missing := [name for name in annotations if name not in corpus.manifest.fields]:
            remedy = REMEDIES.get(missing[0], f"build it with annotate.{missing[0]}=true")
            raise UserError(
                f"{corpus.name} was built without the places of {missing[0]}, which the objective needs: {remedy}, or "
                "use another objective."
            )
        self.corpus = corpus
        self.split = split
        self.seed = seed
        self.label = label
        self.window = window
        # Two windows, because a row may begin in one and end in the next.
        self.shards = OpenShards(corpus, split, verify, most_open=2 * window)
        self.shard_measures = self._shard_measures()
        self.total = int(self.shard_measures.sum())
        self._epoch: LRUCache[int, Epoch] = LRUCache(self._deal, 2)
        self._window: LRUCache[tuple[int, int], Window] = LRUCache(self._shuffle, 2)

    @abstractmethod
    def piece(self, epoch: int, position: int) -> Piece:
        """The raw material of the sample at a position, 0 <= position < per_epoch."""

    @abstractmethod
    def measure(self, tokens: np.ndarray) -> np.ndarray:
        """How much of an epoch documents of so many tokens take: places in the stream, or chunks."""

    @abstractmethod
    def _shard_measures(self) -> np.ndarray:
        """int64 [shards]: the measure of each shard."""

    @abstractmethod
    def _samples_before(self, measures: np.ndarray) -> np.ndarray:
        """How many samples start before a point of the epoch."""

    def _counted(self) -> np.ndarray:
        """The same by the length of each document, which the manifest does not know: read once, when the mix is
        opened."""
        if len(self.shards) > MOST_COUNTED:
            raise UserError(
                f"{self.corpus.name} has {len(self.shards):,} shards, and an objective on pairs of texts counts in "
                f"each of at most {MOST_COUNTED:,}: build it in larger shards, or use an objective on single texts."
            )
        indexes = self.corpus.indexes([self.shards.info(number) for number in range(len(self.shards))])
        return np.array([self.measure(index[:, TOKENS]).sum() for index in indexes])

    def _deal(self, number: int) -> Epoch:
        order = self._generator("shards", number).permutation(len(self.shards))
        windows = np.add.reduceat(self.shard_measures[order], np.arange(0, len(order), self.window))
        measures = np.concatenate(([0], np.cumsum(windows)))
        return Epoch(number, order, self.window, measures, self._samples_before(measures))

    def _shuffle(self, key: tuple[int, int]) -> Window:
        number, window = key
        epoch = self._epoch(number)
        numbers = epoch.shards_of(window)
        self.shards.bring(numbers, wait=True)
        opened = [self.shards.get(shard) for shard in numbers.tolist()]
        self.shards.bring(epoch.shards_of(window + 1), wait=False)
        order = self._generator("documents", number, window).permutation(sum(map(len, opened)))
        tokens = np.concatenate([shard.index[:, TOKENS] for shard in opened])[order]
        samples = int(epoch.samples[window + 1] - epoch.samples[window])
        return Window(
            shard=np.repeat(numbers.astype(np.int32), [len(shard) for shard in opened])[order],
            document=np.concatenate([np.arange(len(shard), dtype=np.int32) for shard in opened])[order],
            edges=np.concatenate(([0], np.cumsum(self.measure(tokens)))),
            sample=self._generator("samples", number, window).permutation(samples),
        )

    def _find(self, epoch: int, position: int) -> tuple[int, int]:
        """The window in which the sample at a position starts, and the sample's number before shuffling."""
        samples = self._epoch(epoch).samples
        window = int(np.searchsorted(samples, position, side="right")) - 1
        first = int(samples[window])
        return window, first + int(self._window((epoch, window)).sample[position - first])

    def _generator(self, purpose: str, *numbers: int) -> np.random.Generator:
        return generator(self.seed, purpose, self.corpus.manifest.id + self.label, *numbers)


class StreamOrder(Order):
    """Rows cut from an epoch's documents laid end to end, across documents and windows; the tail shorter than a row is
    dropped."""

    def __init__(self, corpus: Corpus, split: str, *, cut: RowWindow, **options: Any):
        self.cut = cut
        super().__init__(corpus, split, **options)
        self.per_epoch = max(0, self.total - cut.lookahead) // cut.stride
        if not self.per_epoch:
            raise UserError(
                f"{corpus.name} holds {self.total:,} tokens in its split `{split}`, less than one row of "
                f"{cut.stride + cut.lookahead}: shorten data.sequence or build the corpus from more text."
            )

    def piece(self, epoch: int, position: int) -> list[DocumentSlice]:
        window, row = self._find(epoch, position)
        start = row * self.cut.stride
        stop = start + self.cut.stride + self.cut.lookahead
        edges = self._epoch(epoch).measures
        parts: list[DocumentSlice] = []
        while start < stop:
            end = min(stop, int(edges[window + 1]))
            parts += self._parts(self._window((epoch, window)), start - int(edges[window]), end - int(edges[window]))
            start, window = end, window + 1
        return parts

    def _parts(self, window: Window, start: int, stop: int) -> Iterator[DocumentSlice]:
        """The documents that lie between two places of a window."""
        number = int(np.searchsorted(window.edges, start, side="right")) - 1
        while start < stop:
            first, after = window.edges[number : number + 2].tolist()
            length, end = after - first - self.cut.slots, min(stop, after)
            begin, finish = min(start - first, length), min(end - first, length)
            shard = self.shards.get(int(window.shard[number]))
            document = int(window.document[number])
            tokens = shard.tokens(document, begin, finish)
            known = {name: shard.places(name, document, begin, finish) for name in self.annotations}
            yield DocumentSlice(tokens, slots=end - start - (finish - begin), annotations=known)
            start, number = end, number + 1

    def measure(self, tokens: np.ndarray) -> np.ndarray:
        return tokens + self.cut.slots

    def _shard_measures(self) -> np.ndarray:
        return self.shards.sums("tokens") + self.cut.slots * self.shards.sums("samples")

    def _samples_before(self, measures: np.ndarray) -> np.ndarray:
        return np.minimum(-(-measures // self.cut.stride), self.per_epoch)


class DocumentOrder(StreamOrder):
    """Rows of whole documents: those that begin in a row's stretch of the stream."""

    def piece(self, epoch: int, position: int) -> list[DocumentSlice]:
        window, row = self._find(epoch, position)
        start, stop = row * self.cut.stride, (row + 1) * self.cut.stride
        edges = self._epoch(epoch).measures
        found: list[DocumentSlice] = []
        while start < stop:
            table, before, end = self._window((epoch, window)), int(edges[window]), min(stop, int(edges[window + 1]))
            first, after = np.searchsorted(table.edges, (start - before, end - before)).tolist()
            if first < after:
                found += [self._whole(table, number) for number in range(first, after)]
            start, window = end, window + 1
        return found

    def documents(self, shard: int) -> Iterator[DocumentSlice]:
        """Those of a shard, in the order of its files."""
        opened = self.shards.get(shard)
        return (self._read(opened, document) for document in range(len(opened)))

    def _whole(self, window: Window, number: int) -> DocumentSlice:
        return self._read(self.shards.get(int(window.shard[number])), int(window.document[number]))

    def _read(self, shard: Shard, document: int) -> DocumentSlice:
        length = int(shard.index[document, TOKENS])
        known = {name: shard.places(name, document, 0, length) for name in self.annotations}
        return DocumentSlice(shard.tokens(document, 0, length), slots=self.cut.slots, annotations=known)

    def measure(self, tokens: np.ndarray) -> np.ndarray:
        whole = super().measure(tokens)
        return whole if self.cut.most is None else np.minimum(whole, self.cut.most)

    def _shard_measures(self) -> np.ndarray:
        if self.cut.most == 1:
            return self.shards.sums("samples")
        return super()._shard_measures() if self.cut.most is None else self._counted()


class PairOrder(Order):
    """Chunks of consecutive sentences, counted from the index alone: one for every `length` tokens of a document."""

    def __init__(self, corpus: Corpus, split: str, *, length: int, pieces: str = "sentences", **options: Any):
        """`pieces`: the annotation that says where sentences begin, or what is taken for such."""
        self.length, self.pieces = length, pieces
        if pieces == "sentences" and pieces not in corpus.manifest.fields:
            raise UserError(
                f"{corpus.name} was built without sentence boundaries, which questions about pairs of "
                "texts need: build it with sentences, or use objective masked-lm."
            )
        if pieces != "parts" and corpus.split(split).samples < 2:
            raise UserError(
                f"{corpus.name} has a single document in its split `{split}`, so there is no other one to draw a "
                "random next sentence from: build the corpus from more documents, or use objective masked-lm."
            )
        super().__init__(corpus, split, **options)
        self.per_epoch = self.total

    def piece(self, epoch: int, position: int) -> SentenceGroup:
        window, sample = self._find(epoch, position)
        table = self._window((epoch, window))
        sample -= int(self._epoch(epoch).samples[window])
        number = int(np.searchsorted(table.edges, sample, side="right")) - 1
        shard, document = self.shards.get(int(table.shard[number])), int(table.document[number])
        borders = self._borders(shard, document, sample - int(table.edges[number]))
        sentences = [self._sentence(shard, document, *ends) for ends in pairwise(borders)]

        def outside() -> list[np.ndarray]:
            return [shard.tokens(document, 0, borders[0]), shard.tokens(document, borders[-1])]

        label = int(shard.annotation("labels", document)[0, 1]) if "labels" in self.annotations else IGNORED
        other = partial(self._other, epoch, window, number)
        return SentenceGroup(sentences, other=other, label=label, outside=outside)

    def _borders(self, shard: Shard, document: int, chunk: int) -> list[int]:
        """Of the sentences that start in the chunk's stretch of the document; each token is in exactly one chunk."""
        starts, total = self._starts(shard, document), int(shard.index[document, TOKENS])
        low, high, beyond = (np.array((0, 1, 2)) + chunk) * self.length
        first, last = np.searchsorted(starts, (low, high))
        # A sentence longer than a stretch is cut where the next stretch begins, if no other sentence starts there.
        end = starts[last] if last < len(starts) and starts[last] < beyond else min(high, total)
        return [*(int(start) for start in (starts[first:last] if first < last else (low,))), int(end)]

    def _starts(self, shard: Shard, document: int) -> np.ndarray:
        """Where each piece of a document begins; what stands before the first is one as well."""
        starts = shard.annotation(self.pieces, document)
        if starts.ndim == 2:
            starts = starts[:, 0]
        return starts if len(starts) and starts[0] == 0 else np.concatenate((np.zeros(1, dtype=starts.dtype), starts))

    def _sentence(self, shard: Shard, document: int, start: int, stop: int) -> np.ndarray:
        """Its tokens, with marks where annotations are asked for."""
        marks = [name for name in self.annotations if name not in OF_GROUPS]
        known = {name: shard.places(name, document, start, stop) for name in marks}
        return marked(shard.tokens(document, start, stop), known)

    def _other(self, epoch: int, window: int, number: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
        """Sentences of a random other document of the window, from a random one to its last."""
        table = self._window((epoch, window))
        if len(table.shard) > 1:
            drawn = int(rng.integers(len(table.shard) - 1))
            drawn += drawn >= number
        else:
            table = self._window((epoch, (window + 1) % len(self._epoch(epoch))))
            drawn = int(rng.integers(len(table.shard)))
        shard, document = self.shards.get(int(table.shard[drawn])), int(table.document[drawn])
        starts = self._starts(shard, document)
        first = int(rng.integers(len(starts)))
        borders = [*starts[first:].tolist(), int(shard.index[document, TOKENS])]
        return (self._sentence(shard, document, *ends) for ends in pairwise(borders))

    def measure(self, tokens: np.ndarray) -> np.ndarray:
        return np.maximum(1, -(-tokens // self.length))

    def _shard_measures(self) -> np.ndarray:
        return self._counted()

    def _samples_before(self, measures: np.ndarray) -> np.ndarray:
        return measures
