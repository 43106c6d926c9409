"""Division of the selected documents of a corpus into shards: by split, group and copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from data_pipeline.corpus.groups import CorpusGroups
from data_pipeline.corpus.parts import Part
from data_pipeline.corpus.selection import DocumentRows, Selection, divide_into_shards
from data_pipeline.deduplicate import Deduplicate

SPLITS = ("train", "validation")


@dataclass(frozen=True)
class PartRows:
    """Documents of a part that a shard contains."""

    stem: str
    rows: np.ndarray
    """Rows of the documents in the part, int64, ascending."""
    first: int
    """Index in the corpus of the part's first document. Document indexes are the keys of samples."""
    cluster_sizes: np.ndarray | None = None
    """Cluster size of each document, stored as a note; None if sizes are not stored."""


@dataclass(frozen=True)
class ShardRows:
    """Documents of a shard."""

    split: str
    group: int
    parts: tuple[PartRows, ...]


@dataclass(frozen=True)
class CorpusDocuments:
    """Selected documents of a corpus."""

    selection: Selection
    groups: CorpusGroups | None
    deduplicate: Deduplicate
    cluster_sizes: Callable[[int], np.ndarray | None]
    """Function from a part to the cluster size of each of its documents, or to None if they are not counted."""

    def shards(self, shard_bytes: int) -> Iterator[ShardRows]:
        """Yield the shards of about `shard_bytes` of text. Copies are in separate shards, so that the copies of a
        document are far apart."""
        parts: Sequence[Part] = self.selection.parts  # type: ignore[assignment]
        firsts = np.cumsum([0, *(part.documents for part in parts)]).tolist()
        for split in SPLITS:
            for group, rows in self._rows_by_group(split):
                for copy in range(self._max_copies(split)):
                    copied = rows() if copy == 0 else self._repeated(rows(), copy)
                    for shard in divide_into_shards(copied, parts, shard_bytes):
                        yield ShardRows(
                            split,
                            group,
                            tuple(
                                PartRows(
                                    parts[part].stem,
                                    selected,
                                    firsts[part] + copy * firsts[-1],
                                    self._stored_sizes(part, selected),
                                )
                                for part, selected in shard
                            ),
                        )

    def count_clusters(self) -> dict[int, int]:
        """Return the number of documents by the size of their cluster: 2**i -> documents that stand for 2**i to
        2**(i + 1) - 1. Empty if sizes are not counted."""
        counts = np.zeros(64, dtype=np.int64)
        for split in SPLITS:
            for part, rows in self.selection.rows_by_part(split):
                if (sizes := self.cluster_sizes(part)) is not None:
                    counts += np.bincount(np.log2(sizes[rows]).astype(np.int64), minlength=64)
        return {1 << power: int(count) for power, count in enumerate(counts) if count}

    def count_copies(self) -> int:
        """Return the number of copies of documents besides the first."""
        copies = (
            selected
            for _, rows in self._rows_by_group("train")
            for copy in range(1, self._max_copies("train"))
            for _, selected in self._repeated(rows(), copy)
        )
        return sum(map(len, copies))

    def _rows_by_group(self, split: str) -> Iterator[tuple[int, Callable[[], Iterator[DocumentRows]]]]:
        if self.groups is None:
            yield 0, lambda: self.selection.rows_by_part(split)
        else:
            for group, rows in self.groups.rows_by_group(self.selection, split):
                yield group, lambda rows=rows: iter(rows)  # type: ignore[misc]

    def _max_copies(self, split: str) -> int:
        """Return the maximum number of copies of a document. Held-out documents have no copies."""
        return max([1, *self.deduplicate.repeat.values()]) if split == "train" else 1

    def _repeated(self, rows: Iterator[DocumentRows], copy: int) -> Iterator[DocumentRows]:
        """Yield the documents that have more than `copy` copies."""
        for part, selected in rows:
            sizes = self.cluster_sizes(part)
            assert sizes is not None
            if len(left := selected[self.deduplicate.copies_of(sizes[selected]) > copy]):
                yield part, left

    def _stored_sizes(self, part: int, rows: np.ndarray) -> np.ndarray | None:
        if not self.deduplicate.cluster_sizes:
            return None
        sizes = self.cluster_sizes(part)
        return None if sizes is None else sizes[rows]
