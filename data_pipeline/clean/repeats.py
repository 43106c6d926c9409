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
    """int64 [runs]: first word of each run."""
    grams: np.ndarray
    """uint64 [runs]: equal for equal runs of one text; those of one text are larger than those of the text before."""
    size: int

    @staticmethod
    def of(words: Words, firsts: np.ndarray, size: int) -> Runs:
        texts = np.repeat(np.arange(len(firsts) - 1, dtype=np.uint64) << np.uint64(64 - TEXT_BITS), np.diff(firsts))
        grams = words.ngrams(size)
        grams >>= np.uint64(TEXT_BITS)
        grams |= texts[: len(grams)]
        begins = np.flatnonzero(texts[: len(grams)] == texts[len(texts) - len(grams) :])
        return Runs(words, firsts, begins, grams[begins], size)

    def characters(self) -> np.ndarray:
        """int64 [runs]."""
        before = np.concatenate(([0], np.cumsum(self.words.lengths, dtype=np.int64)))
        return before[self.begins + self.size] - before[self.begins]

    def of_most_frequent(self) -> np.ndarray:
        """int64 [texts]: characters in the most frequent run (the longest of several); 0 when none stands twice."""
        ordered = np.sort(self.grams)
        begins = _begins(ordered)
        counts = np.diff(begins, append=len(ordered))
        # Runs that stand once are most: leaving them out first makes all that follows short.
        begins, counts = begins[counts > 1], counts[counts > 1]
        grams, texts = ordered[begins], _text(ordered[begins])
        most = per_text(np.maximum, counts, np.searchsorted(texts, np.arange(len(self.firsts))))
        tops = Known(grams[counts == most[texts]]).places(self.grams)
        longest = np.zeros(len(most), np.int64)
        np.maximum.at(longest, _text(self.grams[tops]), self.characters()[tops])
        return most * longest

    def of_later(self) -> np.ndarray:
        """int64 [texts]: characters in runs that stood before, each counted once however many runs it is in."""
        ordered = np.sort(self.grams)
        again = Known(ordered[1:][ordered[1:] == ordered[:-1]]).places(self.grams)
        _, earliest = np.unique(self.grams[again], return_index=True)
        later = self.begins[np.delete(again, earliest)]
        steps = np.zeros(len(self.words) + 1, np.int32)
        steps[later] += 1
        steps[later + self.size] -= 1
        return per_text(np.add, self.words.lengths * (np.cumsum(steps[:-1]) > 0), self.firsts)


def _text(grams: np.ndarray) -> np.ndarray:
    return (grams >> np.uint64(64 - TEXT_BITS)).astype(np.int64)


def _begins(ordered: np.ndarray) -> np.ndarray:
    """Where each value of a sorted array stands first."""
    is_new = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=is_new[1:])
    return np.flatnonzero(is_new)
