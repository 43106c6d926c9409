"""Share of a text that is made of repeated n-grams, computed for several texts at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_pipeline.clean.hash_set import HashSet
from data_pipeline.clean.words import Words, reduce_per_text

TEXT_BITS = 8
"""Bits of an n-gram's hash that hold the index of its text. With the other 56, two of a million n-grams collide with a
probability of 1 in 100,000."""


@dataclass(frozen=True)
class NGrams:
    """N-grams of `size` words in up to 256 texts, in the format of `split_into_words`."""

    words: Words
    firsts: np.ndarray
    """Index of the first word of each text, int64 [texts + 1]."""
    starts: np.ndarray
    """Index of the first word of each n-gram, int32 [runs]."""
    grams: np.ndarray
    """Hashes of the n-grams, uint64 [runs]: equal for equal n-grams of a text. Each text's hashes are larger than all
    hashes of the previous text."""
    size: int

    @staticmethod
    def from_words(words: Words, firsts: np.ndarray, size: int) -> NGrams:
        texts = np.repeat(np.arange(len(firsts) - 1, dtype=np.uint8), np.diff(firsts))
        grams = words.ngrams(size)
        starts = np.flatnonzero(texts[: len(grams)] == texts[len(texts) - len(grams) :]).astype(np.int32)
        grams = grams if len(starts) == len(grams) else grams[starts]
        grams >>= np.uint64(TEXT_BITS)
        if len(firsts) > 2:
            grams |= texts[starts].astype(np.uint64) << np.uint64(64 - TEXT_BITS)
        return NGrams(words, firsts, starts, grams, size)

    def top_characters(self) -> np.ndarray:
        """Return the characters in the most frequent n-gram of each text, the longest if tied, int64 [texts]; 0 if none
        occurs twice."""
        grams, counts = np.unique(self._repeated_grams(), return_counts=True)
        texts = _text_index(grams)
        max_counts = reduce_per_text(np.maximum, counts + 1, np.searchsorted(texts, np.arange(len(self.firsts))))
        tops = HashSet(grams[counts + 1 == max_counts[texts]]).indexes_of(self.grams)
        before = self.words.characters_before
        characters = before[self.starts[tops] + self.size] - before[self.starts[tops]]
        longest = np.zeros(len(max_counts), np.int64)
        np.maximum.at(longest, _text_index(self.grams[tops]), characters)
        return max_counts * longest

    def duplicate_characters(self) -> np.ndarray:
        """Return the characters in the n-grams of each text that occurred earlier in it, int64 [texts]. Each character
        counts once."""
        indexes = HashSet(self._repeated_grams()).indexes_of(self.grams)
        _, earliest = np.unique(self.grams[indexes], return_index=True)
        later = self.starts[np.delete(indexes, earliest)]
        steps = np.zeros(len(self.words) + 1, np.int32)
        steps[later] += 1
        steps[later + self.size] -= 1
        is_covered = np.cumsum(steps[:-1], dtype=np.int32) > 0
        return reduce_per_text(np.add, self.words.lengths * is_covered, self.firsts)

    def _repeated_grams(self) -> np.ndarray:
        """Return uint64: sorted hashes of repeated n-grams, one entry per further occurrence."""
        ordered = np.sort(self.grams)
        return ordered[1:][ordered[1:] == ordered[:-1]]


def _text_index(grams: np.ndarray) -> np.ndarray:
    return (grams >> np.uint64(64 - TEXT_BITS)).astype(np.int64)
