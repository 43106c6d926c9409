"""Similarity of two documents, computed from their texts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_pipeline.deduplicate.buckets import PartListing
from data_pipeline.deduplicate.files import read_part
from data_pipeline.deduplicate.minhash import PIECE, shingles
from data_pipeline.deduplicate.options import Near

SAMPLED = 1 << 17
"""Characters of a text from which only the shingles with the smallest hashes are compared: half of them, a quarter from
twice as many characters on, and so on. Tens of thousands remain."""
HELD = 1 << 22
"""Shingles cached for the next pairs, which often contain the same documents: 32 MiB."""


class Texts:
    """Reads and compares documents by row."""

    def __init__(self, listing: PartListing, near: Near):
        self._stems, self._begins, self._near = listing.stems, listing.begins, near
        self._kept: dict[int, Shingles] = {}

    def alike(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Return bool [n]: whether the similarity of the documents in rows `left[i]` and `right[i]` reaches the
        threshold."""
        self._read(np.unique(np.concatenate([left, right])))
        pairs = zip(left.tolist(), right.tolist(), strict=True)
        similarities = [self._kept[one].similarity(self._kept[other]) for one, other in pairs]
        return np.array(similarities, float) >= self._near.threshold

    def _read(self, rows: np.ndarray) -> None:
        """Load the shingles of these ascending rows into the cache."""
        if sum(len(shingles.hashes) for shingles in self._kept.values()) > HELD:
            self._kept = {}
        rows = np.array([row for row in rows.tolist() if row not in self._kept], np.int64)
        cuts = np.searchsorted(rows, self._begins)
        for part in np.flatnonzero(np.diff(cuts)):
            these = rows[cuts[part] : cuts[part + 1]]
            documents = read_part(self._stems[part], these - self._begins[part])
            for row, document in zip(these.tolist(), documents, strict=True):
                self._kept[row] = Shingles.of(document.text, self._near.ngram)


@dataclass(frozen=True)
class Shingles:
    """Shingles of a text with hashes below 2**(64 - halvings)."""

    halvings: int
    hashes: np.ndarray
    """uint64 [n], ascending and unique."""

    @staticmethod
    def of(text: str, ngram: int) -> Shingles:
        halvings = (len(text) // SAMPLED).bit_length()
        below = np.uint64(((1 << 64) - 1) >> halvings)
        pieces = (text[begin : begin + PIECE] for begin in range(0, max(len(text), 1), PIECE))
        some = [hashes[hashes <= below] for hashes, _ in (shingles([piece], ngram) for piece in pieces)]
        return Shingles(halvings, np.unique(np.concatenate(some)))

    def similarity(self, other: Shingles) -> float:
        """Return the Jaccard similarity."""
        below = np.uint64(((1 << 64) - 1) >> max(self.halvings, other.halvings))
        ours, theirs = (one[: np.searchsorted(one, below, side="right")] for one in (self.hashes, other.hashes))
        shared = len(np.intersect1d(ours, theirs, assume_unique=True))
        return shared / max(len(ours) + len(theirs) - shared, 1)
