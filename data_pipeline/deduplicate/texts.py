"""Similarity of two documents, computed from their texts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_pipeline.deduplicate.buckets import PartListing
from data_pipeline.deduplicate.files import read_part
from data_pipeline.deduplicate.minhash import PIECE, shingles
from data_pipeline.deduplicate.options import NearDuplicateOptions

SAMPLED_CHARACTERS = 1 << 17
"""Maximum characters of a text whose shingles are all compared. Of a longer text, only the shingles with the smallest
hashes are compared: half up to twice as many characters, then a quarter, and so on. Tens of thousands remain."""
MAX_CACHED_SHINGLES = 1 << 22
"""Shingles cached for the next pairs, which often contain the same documents: 32 MiB."""


class TextComparer:
    """Reads and compares documents by row."""

    def __init__(self, listing: PartListing, near: NearDuplicateOptions):
        self._stems, self._first_rows, self._near = listing.stems, listing.first_rows, near
        self._cache: dict[int, Shingles] = {}

    def are_similar(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Compare documents by their texts: bool [n], whether the similarity of the documents in rows `first[i]` and
        `second[i]` reaches the threshold."""
        self._read_shingles(np.unique(np.concatenate([first, second])))
        pairs = zip(first.tolist(), second.tolist(), strict=True)
        similarities = [self._cache[first_row].similarity(self._cache[second_row]) for first_row, second_row in pairs]
        return np.array(similarities, float) >= self._near.threshold

    def _read_shingles(self, rows: np.ndarray) -> None:
        """Load the shingles of documents in these ascending rows into the cache."""
        if sum(len(shingles.hashes) for shingles in self._cache.values()) > MAX_CACHED_SHINGLES:
            self._cache = {}
        rows = np.array([row for row in rows.tolist() if row not in self._cache], np.int64)
        cuts = np.searchsorted(rows, self._first_rows)
        for part in np.flatnonzero(np.diff(cuts)):
            part_rows = rows[cuts[part] : cuts[part + 1]]
            documents = read_part(self._stems[part], part_rows - self._first_rows[part])
            for row, document in zip(part_rows.tolist(), documents, strict=True):
                self._cache[row] = Shingles.from_text(document.text, self._near.ngram)


@dataclass(frozen=True)
class Shingles:
    """Shingles of a text with hashes below 2**(64 - halvings)."""

    halvings: int
    hashes: np.ndarray
    """Hashes of the shingles, uint64 [n], ascending and unique."""

    @staticmethod
    def from_text(text: str, ngram: int) -> Shingles:
        halvings = (len(text) // SAMPLED_CHARACTERS).bit_length()
        below = np.uint64(((1 << 64) - 1) >> halvings)
        pieces = (text[begin : begin + PIECE] for begin in range(0, max(len(text), 1), PIECE))
        piece_hashes = [hashes[hashes <= below] for hashes, _ in (shingles([piece], ngram) for piece in pieces)]
        return Shingles(halvings, np.unique(np.concatenate(piece_hashes)))

    def similarity(self, second_row: Shingles) -> float:
        """Return the Jaccard similarity of the shingles of two texts."""
        below = np.uint64(((1 << 64) - 1) >> max(self.halvings, second_row.halvings))
        own, others_hashes = (
            first_row[: np.searchsorted(first_row, below, side="right")]
            for first_row in (self.hashes, second_row.hashes)
        )
        shared = len(np.intersect1d(own, others_hashes, assume_unique=True))
        return shared / max(len(own) + len(others_hashes) - shared, 1)
