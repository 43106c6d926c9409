"""Order of an epoch as a pure function: position -> tokens of a sample, without reading earlier samples.

Shards are permuted. `window` shards at a time are opened, and their documents are shuffled together. The samples that
start in a window are shuffled as well, since a long document would otherwise fill a complete batch. So an epoch reads
the corpus once while only one window is in memory, and two binary searches find any position.
"""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from megaptm.data.lru import LRUCache
from megaptm.data.manifest import MANIFEST
from megaptm.data.seeds import seeded_generator
from megaptm.data.shards import TOKENS, Corpus, Shard, ShardInfo, Verify
from megaptm.data.shared_checks import Verdicts
from megaptm.errors import UserError
from megaptm.objectives.objective import Piece

WINDOW = 8
"""Number of shards whose documents are shuffled together in an epoch's order."""
REMEDIES = {
    "parts": "sources with `parts` or `aligned`",
    "labels": "annotate.labels, a list of the values of the note `label` of its documents",
    "phrases": "annotate.phrases, a file of phrases",
    "tags": "annotate.tags, a file of tagged phrases",
}
"""Setting that builds a corpus with an annotation, by annotation, for annotations that are not switches."""
ALSO_REQUIRED = {"turns": "sources with `messages`"}
"""Requirement on sources besides the annotation's switch, by annotation."""
MAX_INDEXED_SHARDS = 100_000
"""Maximum number of shards whose indexes are read to count sentences or parts: a minute from a local disk, longer from
a remote one."""


class OpenShards:
    """Shards of a split, opened on demand and verified the first time, by one of the processes that share the checks of
    a corpus (`Corpus.share`)."""

    def __init__(
        self, corpus: Corpus, split: str, verify: Verify, max_open: int, selected: np.ndarray | None = None
    ) -> None:
        """`selected`: rows of the shards in the shard table that are read. None: all."""
        self.corpus = corpus
        self.table = corpus.split(split).shards
        # Shards without documents are skipped.
        has_documents = self.table.rows["samples"] > 0
        self.rows = np.flatnonzero(has_documents) if selected is None else selected[has_documents[selected]]
        """Row of each shard in the shard table, int64 [shards]."""
        self.verify = verify
        # One byte per shard, shared with the forked processes of the loader, so that each shard is hashed by only one
        # of them.
        self._checked = mmap.mmap(-1, len(self.rows))
        share = corpus.share if verify == "hash" else None
        self._verdicts = Verdicts(share.folder, corpus.folder / MANIFEST, split) if share else None
        self.get: LRUCache[int, Shard] = LRUCache(self._open, max_open)

    def __len__(self) -> int:
        return len(self.rows)

    def info(self, shard: int) -> ShardInfo:
        return self.table[int(self.rows[shard])]

    def table_column(self, column: str) -> np.ndarray:
        """Return a column of the shard table, int64 [shards]."""
        return self.table.rows[column][self.rows]

    def get_all(self, shards: Sequence[int]) -> list[Shard]:
        """Return some shards. Processes that share checks verify several of them at a time."""
        self._verify(shards)
        return [self.get(shard) for shard in shards]

    def _open(self, index: int) -> Shard:
        self._verify([index])
        shard = self.corpus.open_shard(self.info(index), "none" if self._checked[index] else self.verify)
        if self.verify != "hash":  # without hashes, each read checks that ids are within the vocabulary
            shard.vocabulary = self.corpus.manifest.tokenizer["vocabulary"]
        self._checked[index] = 1
        return shard

    def _verify(self, shards: Sequence[int]) -> None:
        """Compare the hash of shards with the manifest, and their token ids with the vocabulary: once per shard."""
        if self.verify != "hash" or not (new := [shard for shard in shards if not self._checked[shard]]):
            return
        if self._verdicts is None:
            for shard in new:
                self._check(shard)
        else:
            # Processes share verdicts by the row of a shard, because parts of a mix read other shards of a split.
            number_of = {int(self.rows[shard]): shard for shard in new}
            files = {row: self.corpus.folder / self.info(shard).name for row, shard in number_of.items()}
            self._verdicts.check(files, lambda row: self._check(number_of[row]))
        for shard in new:
            self._checked[shard] = 1

    def _check(self, shard: int) -> None:
        self.corpus.open_shard(self.info(shard), "hash").check_ids(self.corpus.manifest.tokenizer["vocabulary"])

    def fetch(self, shards: np.ndarray, *, wait: bool) -> None:
        """Fetch remote shards: wait for them, or without `wait` prefetch them in the background."""
        if self.corpus.mirror:
            self.corpus.fetch([self.info(shard) for shard in shards.tolist()], wait=wait)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_checked"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _checked=mmap.mmap(-1, len(state["rows"])))


@dataclass(frozen=True)
class EpochShards:
    """Assignment of a split's shards to windows in one epoch."""

    number: int
    shards: np.ndarray
    """Order of the shards in this epoch, int64 [shards]."""
    window: int
    """Number of shards per window. The last window may have fewer."""
    measures: np.ndarray
    """Cumulative measure (see `Order.measure_documents`) before each window, int64 [windows + 1]."""
    samples: np.ndarray
    """Number of samples that start before each window, int64 [windows + 1]."""

    def __len__(self) -> int:
        """Return the number of windows in this epoch."""
        return len(self.samples) - 1

    def shards_of(self, window: int) -> np.ndarray:
        """Return the shards of a window of the epoch: int64 [shards]."""
        return self.shards[window * self.window : (window + 1) * self.window]


@dataclass(frozen=True)
class ShardWindow:
    """Shuffled documents of the shards that are opened together."""

    shard: np.ndarray
    """Shard of each document in the window, int32 [documents]."""
    document: np.ndarray
    """Index of each document in its shard, int32 [documents]."""
    edges: np.ndarray
    """Cumulative measure (see `Order.measure_documents`) before each document of the window, int64 [documents + 1]."""
    sample: np.ndarray
    """Permutation of the samples that start in this window, int64 [samples]."""


def check_annotations(corpus: Corpus, needed: Iterable[str], *, alone: bool = True) -> None:
    """Raise `UserError` if a corpus was built without a needed annotation, or has no instance of it.

    `alone`: whether no other corpora are configured that tasks could read instead.
    """
    other_remedy = "" if alone else "set the corpora that its tasks read (`corpora`), "
    needed, counts = [*dict.fromkeys(needed)], corpus.manifest.made_from.get("annotation_counts", {})
    if missing := [name for name in needed if name not in corpus.manifest.fields]:
        raise UserError(
            f"{corpus.name} was built without {' and '.join(missing)}, which the objective needs: build it with "
            f"{_missing_remedy(missing)}, {other_remedy}or use another objective."
        )
    if empty := [name for name in needed if counts.get(name) == 0]:
        raise UserError(
            f"{corpus.name} has no {' and no '.join(empty)} at all, which the objective needs: build it from text that "
            f"has them, with {_missing_remedy(empty)}, {other_remedy}or use another objective."
        )


def _missing_remedy(missing: Sequence[str]) -> str:
    switches = " ".join(f"annotate.{name}=true" for name in missing if name not in REMEDIES)
    more = [table[name] for table in (REMEDIES, ALSO_REQUIRED) for name in missing if name in table]
    return " and ".join([*([switches] if switches else []), *more])


class Order(ABC):
    """Order of the samples of one split of one corpus, epoch after epoch."""

    per_epoch: int
    """Number of samples of the split per epoch, the same for all epochs."""

    def __init__(
        self,
        corpus: Corpus,
        split: str,
        *,
        seed: int,
        annotations: tuple[str, ...] = (),
        blobs: tuple[str, ...] = (),
        verify: Verify = "hash",
        window: int = WINDOW,
        label: str = "",
        selected: np.ndarray | None = None,
    ):
        """Create the order of the `selected` shards, by default all (`OpenShards`). Different labels give different
        orders of a corpus. Samples include the positions of `annotations`; complete documents also include their files
        with a suffix in `blobs`."""
        self.annotations = annotations
        self.blobs = tuple(name for name in blobs if name in corpus.manifest.fields)
        check_annotations(corpus, annotations)
        self.corpus = corpus
        self.split = split
        self.seed = seed
        self.label = label
        self.window = window
        # Two windows, because a sequence may start in one and end in the next.
        self.shards = OpenShards(corpus, split, verify, max_open=2 * window, selected=selected)
        self.shard_measures = self._shard_measures()
        self.total = int(self.shard_measures.sum())
        self._epoch: LRUCache[int, EpochShards] = LRUCache(self._assign_shards, 2)
        self._window: LRUCache[tuple[int, int], ShardWindow] = LRUCache(self._shuffle, 2)

    @abstractmethod
    def piece(self, epoch: int, position: int) -> Piece:
        """Return the tokens and annotations of the sample at a position, 0 <= position < per_epoch, before the
        objective changes them."""

    @abstractmethod
    def measure_documents(self, tokens: np.ndarray) -> np.ndarray:
        """Return the measure of each document from its number of tokens: its positions in the stream, or its chunks.
        Samples of an epoch have equal shares of the measure."""

    @abstractmethod
    def _shard_measures(self) -> np.ndarray:
        """Return the measure of each shard, the sum over its documents, int64 [shards]."""

    @abstractmethod
    def _samples_before(self, measures: np.ndarray) -> np.ndarray:
        """Return the number of samples that start before each point of an epoch."""

    def _count_by_document(self) -> np.ndarray:
        """Return the measure of each shard by the lengths of its documents. The lengths are not in the manifest, so all
        indexes are read once when the mix is opened."""
        if len(self.shards) > MAX_INDEXED_SHARDS:
            raise UserError(
                f"{self.corpus.name} has {len(self.shards):,} shards, but an objective on pairs of texts can read the "
                f"indexes of at most {MAX_INDEXED_SHARDS:,}: build the corpus in larger shards, or use an objective on "
                "single texts."
            )
        indexes = self.corpus.indexes([self.shards.info(number) for number in range(len(self.shards))])
        return np.array([self.measure_documents(index[:, TOKENS]).sum() for index in indexes])

    def _assign_shards(self, number: int) -> EpochShards:
        order = self._generator("shards", number).permutation(len(self.shards))
        windows = np.add.reduceat(self.shard_measures[order], np.arange(0, len(order), self.window))
        measures = np.concatenate(([0], np.cumsum(windows)))
        return EpochShards(number, order, self.window, measures, self._samples_before(measures))

    def _shuffle(self, key: tuple[int, int]) -> ShardWindow:
        number, window = key
        epoch = self._epoch(number)
        numbers = epoch.shards_of(window)
        self.shards.fetch(numbers, wait=True)
        opened = self.shards.get_all(numbers.tolist())
        self.shards.fetch(epoch.shards_of(window + 1), wait=False)
        order = self._generator("documents", number, window).permutation(sum(map(len, opened)))
        tokens = np.concatenate([shard.index[:, TOKENS] for shard in opened])[order]
        samples = int(epoch.samples[window + 1] - epoch.samples[window])
        return ShardWindow(
            shard=np.repeat(numbers.astype(np.int32), [len(shard) for shard in opened])[order],
            document=np.concatenate([np.arange(len(shard), dtype=np.int32) for shard in opened])[order],
            edges=np.concatenate(([0], np.cumsum(self.measure_documents(tokens)))),
            sample=self._generator("samples", number, window).permutation(samples),
        )

    def _find(self, epoch: int, position: int) -> tuple[int, int]:
        """Return the window in which the sample at a position of an epoch starts, and the index of the sample before
        shuffling."""
        samples = self._epoch(epoch).samples
        window = int(np.searchsorted(samples, position, side="right")) - 1
        first = int(samples[window])
        return window, first + int(self._window((epoch, window)).sample[position - first])

    def _generator(self, purpose: str, *numbers: int) -> np.random.Generator:
        return seeded_generator(self.seed, purpose, self.corpus.manifest.id + self.label, *numbers)
