"""The repetition rules of MassiveText (Gopher; Rae et al., 2021, arXiv:2112.11446, appendix A.1.1, table A1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from data_pipeline.clean.gopher_quality import spaced_words
from data_pipeline.clean.step import Filter, require_shares
from data_pipeline.clean.words import Words
from data_pipeline.document import Document

TOP, DUPLICATE = (2, 3, 4), (5, 6, 7, 8, 9, 10)


@dataclass(frozen=True)
class GopherRepetition(Filter):
    """Leave out what says the same again and again. The numbers are table A1's; `null` turns a rule off.

    Each is the largest share allowed. A line, paragraph or n-gram is a duplicate when it stood before in the text;
    shares of characters are of those of lines and paragraphs (line ends aside), or of words (spaces aside).
    """

    duplicate_lines: float | None = 0.30
    duplicate_paragraphs: float | None = 0.30
    duplicate_line_characters: float | None = 0.20
    duplicate_paragraph_characters: float | None = 0.20
    top_2_gram: float | None = 0.20
    """Characters in the most frequent run of two words; one that stands once is no repetition."""
    top_3_gram: float | None = 0.18
    top_4_gram: float | None = 0.16
    duplicate_5_grams: float | None = 0.15
    """Characters in runs of five words that stood before, each character counted once."""
    duplicate_6_grams: float | None = 0.14
    duplicate_7_grams: float | None = 0.13
    duplicate_8_grams: float | None = 0.12
    duplicate_9_grams: float | None = 0.11
    duplicate_10_grams: float | None = 0.10

    def __post_init__(self) -> None:
        require_shares(self, "gopher-repetition", *(field.name for field in fields(self)))

    def reason(self, document: Document) -> str | None:
        text = document.text
        for name, share in self._shares_of_lines(text):
            if self._is_above(name, share):
                return self._told(name)
        words = spaced_words(text)
        broken = self._top(words) or self._duplicates(words)
        return broken and self._told(broken)

    def _is_above(self, name: str, share: float) -> bool:
        most = getattr(self, name)
        return most is not None and share > most

    def _told(self, name: str) -> str:
        return f"gopher-repetition: {name.replace('_', ' ')} above {getattr(self, name):.0%}"

    def _shares_of_lines(self, text: str) -> Iterator[tuple[str, float]]:
        lines = [line for line in text.split("\n") if line]
        yield "duplicate_lines", (found := _duplicate_shares(lines))[0]
        yield "duplicate_line_characters", found[1]
        if not found[0]:  # no line twice: no paragraph
            return
        paragraphs = [stripped for part in text.split("\n\n") if (stripped := part.strip("\n"))]
        yield "duplicate_paragraphs", (found := _duplicate_shares(paragraphs))[0]
        yield "duplicate_paragraph_characters", found[1]

    def _top(self, words: Words) -> str | None:
        """The first rule about the most frequent n-gram that is broken.

        A run of three words stands no more often than its first two: when even the longest would be within the rule
        at that count, nothing of that size is counted.
        """
        total, count = int(words.lengths.sum()), len(words)
        for size in TOP:
            most = getattr(self, name := f"top_{size}_gram")
            if most is None or len(words) < size:
                continue
            sizes = _sums(words.lengths, size)
            if count * int(sizes.max()) <= most * total:
                continue
            grams = words.ngrams(size)
            tops, count = _most_frequent(grams)
            if count < 2:
                return None
            # Among equally frequent ones, the longest.
            if (
                count * int(sizes.max()) > most * total
                and count * int(sizes[np.isin(grams, tops)].max()) > most * total
            ):
                return name
        return None

    def _duplicates(self, words: Words) -> str | None:
        """The first rule about duplicate n-grams that is broken.

        What is in a run of six words that stood before is in such a run of five: when those hold no more than any
        rule allows, they are all kept.
        """
        total, rules = int(words.lengths.sum()), {size: getattr(self, f"duplicate_{size}_grams") for size in DUPLICATE}
        rules = {size: most for size, most in rules.items() if most is not None}
        for size, most in rules.items():
            least = min(other for larger, other in rules.items() if larger >= size) * total
            covered = _covered(words, size, enough=least)
            if covered > most * total:
                return f"duplicate_{size}_grams"
            if covered <= least:
                return None
        return None


def _duplicate_shares(parts: Sequence[str]) -> tuple[float, float]:
    """Of these lines or paragraphs, the share that stood before; and the share of their characters."""
    different = set(parts)
    if len(different) == len(parts):
        return 0.0, 0.0
    characters = sum(map(len, parts))
    return 1 - len(different) / len(parts), 1 - sum(map(len, different)) / characters


def _sums(lengths: np.ndarray, size: int) -> np.ndarray:
    """Characters of each run of `size` words."""
    count = len(lengths) - size + 1
    sums = lengths[:count].copy()
    for place in range(1, size):
        sums += lengths[place : place + count]
    return sums


def _most_frequent(grams: np.ndarray) -> tuple[np.ndarray, int]:
    """The most frequent of one or more hashes, and how often each stands."""
    grams = np.sort(grams)
    begins = np.flatnonzero(np.concatenate(([True], grams[1:] != grams[:-1])))
    counts = np.diff(begins, append=len(grams))
    return grams[begins[counts == counts.max()]], int(counts.max())


def _covered(words: Words, size: int, *, enough: float) -> int:
    """Characters in runs of `size` words that stood before; some number up to `enough` when they are no more."""
    grams = words.ngrams(size)
    if not len(grams):
        return 0
    ordered = np.sort(grams)
    again = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(again) * int(_sums(words.lengths, size).max()) <= enough:
        return 0
    places = np.flatnonzero(_among(grams, np.unique(again)))
    _, firsts = np.unique(grams[places], return_index=True)
    later = np.delete(places, firsts)
    steps = np.zeros(len(words) + 1, np.int32)
    steps[later] += 1
    steps[later + size] -= 1
    return int(words.lengths[np.cumsum(steps[:-1]) > 0].sum())


def _among(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """bool, as `values`: is each one of the sorted `known`?"""
    return known[np.minimum(np.searchsorted(known, values), len(known) - 1)] == values
