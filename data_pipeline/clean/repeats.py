"""How much of a text is runs of words that stand in it more than once; of several texts at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_pipeline.clean.known import Known
from data_pipeline.clean.words import Words, per_text

TEXT_BITS = 8
"""Of a hash, for the number of its text. 56 are left: two of a million runs are the same by chance once in 100,000."""


@dataclass(frozen=True)
class Runs:
    """The runs of `size` words in up to 256 texts, given as `words_of` does."""

    words: Words
    firsts: np.ndarray
    """int64 [texts + 1]: first word of each text."""
    begins: np.ndarray
    """int32 [runs]: first word of each run."""
    grams: np.ndarray
    """uint64 [runs]: equal for equal runs of one text; those of one text are larger than those of the text before."""
    size: int

    @staticmethod
    def of(words: Words, firsts: np.ndarray, size: int) -> Runs:
        texts = np.repeat(np.arange(len(firsts) - 1, dtype=np.uint8), np.diff(firsts))
        grams = words.ngrams(size)
        begins = np.flatnonzero(texts[: len(grams)] == texts[len(texts) - len(grams) :]).astype(np.int32)
        grams = grams if len(begins) == len(grams) else grams[begins]
        grams >>= np.uint64(TEXT_BITS)
        if len(firsts) > 2:
            grams |= texts[begins].astype(np.uint64) << np.uint64(64 - TEXT_BITS)
        return Runs(words, firsts, begins, grams, size)

    def of_most_frequent(self) -> np.ndarray:
        """int64 [texts]: characters in the most frequent run (the longest of several); 0 when none stands twice."""
        grams, counts = np.unique(self._again(), return_counts=True)
        texts = _text(grams)
        most = per_text(np.maximum, counts + 1, np.searchsorted(texts, np.arange(len(self.firsts))))
        tops = Known(grams[counts + 1 == most[texts]]).places(self.grams)
        before = self.words.characters_before
        characters = before[self.begins[tops] + self.size] - before[self.begins[tops]]
        longest = np.zeros(len(most), np.int64)
        np.maximum.at(longest, _text(self.grams[tops]), characters)
        return most * longest

    def of_later(self) -> np.ndarray:
        """int64 [texts]: characters in runs that stood before, each counted once however many runs it is in."""
        places = Known(self._again()).places(self.grams)
        _, earliest = np.unique(self.grams[places], return_index=True)
        later = self.begins[np.delete(places, earliest)]
        steps = np.zeros(len(self.words) + 1, np.int32)
        steps[later] += 1
        steps[later + self.size] -= 1
        is_covered = np.cumsum(steps[:-1], dtype=np.int32) > 0
        return per_text(np.add, self.words.lengths * is_covered, self.firsts)

    def _again(self) -> np.ndarray:
        """uint64: the hashes that stand more than once, each as often as it stands again, rising."""
        ordered = np.sort(self.grams)
        return ordered[1:][ordered[1:] == ordered[:-1]]


def _text(grams: np.ndarray) -> np.ndarray:
    return (grams >> np.uint64(64 - TEXT_BITS)).astype(np.int64)
