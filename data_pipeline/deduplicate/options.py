"""Options of deduplication: exact duplicates, repeated paragraphs, near duplicates."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from megaptm.errors import UserError

MAX_COPIES = 100
"""Maximum copies of a document."""
RECALL = 0.99
"""Minimum probability that a pair of documents just at the threshold shares a band key."""


@dataclass(frozen=True, kw_only=True)
class NearDuplicateOptions:
    """Near duplicates by MinHash (Broder, 1997) with banding (Leskovec et al., Mining of Massive Datasets, section
    3.4)."""

    threshold: float = 0.8
    """Minimum Jaccard similarity, of the sets of word n-grams, of near duplicates."""
    ngram: int = 5
    """Number of words per shingle."""
    hashes: int = 128
    """Number of components of a MinHash signature. The standard deviation of the estimated similarity is at most 0.5 /
    sqrt(hashes)."""
    seed: int = 0
    """Seed of the signatures. All seeds are equally good."""

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise UserError(f"threshold must be above 0 and at most 1, not {self.threshold}.")
        if self.ngram < 1:
            raise UserError(f"ngram must be 1 word or more, not {self.ngram}.")
        if not 16 <= self.hashes <= 1024 or self.hashes % 2:
            raise UserError(f"hashes must be an even number from 16 to 1024, not {self.hashes}.")
        if self.seed < 0:
            raise UserError(f"seed must be 0 or more, not {self.seed}.")

    @property
    def rows(self) -> int:
        """Number of components per band: the maximum that satisfies RECALL, to minimize chance matches."""
        rows = 1
        while 2 * (rows + 1) <= self.hashes and self.match_probability(self.threshold, rows + 1) >= RECALL:
            rows += 1
        return rows

    @property
    def bands(self) -> int:
        return self.hashes // self.rows

    def match_probability(self, similarity: float, rows: int | None = None) -> float:
        """Return the probability that two documents of this similarity agree on at least one band."""
        rows = rows or self.rows
        return 1 - (1 - similarity**rows) ** (self.hashes // rows)

    @property
    def min_possible(self) -> int:
        """Minimum number of equal components of possible near duplicates: the threshold minus three standard
        deviations, which 999 of 1000 pairs at the threshold reach."""
        return math.ceil((self.threshold - 3 * self._deviation) * self.hashes)

    @property
    def min_certain(self) -> int:
        """Minimum number of equal components of pairs that count as near duplicates without comparing their texts: the
        threshold plus three standard deviations."""
        return min(math.ceil((self.threshold + 3 * self._deviation) * self.hashes), self.hashes)

    @property
    def _deviation(self) -> float:
        return math.sqrt(self.threshold * (1 - self.threshold) / self.hashes)


@dataclass(frozen=True, kw_only=True)
class ParagraphOptions:
    """Removal of paragraphs that occurred earlier, compared character by character."""

    between: Literal["blank lines", "lines"] = "blank lines"
    """Separator of paragraphs. Text of web pages has one paragraph per line."""
    characters: int = 80
    """Minimum characters of a paragraph that may be removed. Shorter ones are headings, table cells, `Thank you.`"""
    code: bool = False
    """Whether to remove repeated paragraphs from documents of code, too."""

    def __post_init__(self) -> None:
        if self.characters < 1:
            raise UserError(f"characters must be 1 or more, not {self.characters}.")


@dataclass(frozen=True, kw_only=True)
class Deduplicate:
    """Options of deduplication: the kinds of duplicates to drop."""

    documents: bool = True
    """Whether to drop a document equal to an earlier one."""
    paragraphs: ParagraphOptions | None = None
    """Options to remove a paragraph equal to an earlier one; None disables it."""
    near: NearDuplicateOptions | None = None
    """Options to drop a near duplicate of a document that is kept; None disables it."""
    cluster_sizes: bool = False
    """Whether a document that is kept has the note `cluster_size`: one more than the number of its duplicates."""
    repeat: dict[int, int] = field(default_factory=dict)
    """Copies of a training document, by minimum size of its cluster: `{2: 2, 5: 3}`. Default: one."""

    def __post_init__(self) -> None:
        if not (self.documents or self.near) and self.counts_duplicates:
            raise UserError("deduplicate: cluster_sizes and repeat need `documents` or `near`: set one of them.")
        if self.paragraphs and self.counts_duplicates:
            raise UserError(
                "deduplicate: cluster_sizes and repeat count complete documents, but `paragraphs` cuts them: build "
                "without it."
            )
        if invalid := [size for size, copies in self.repeat.items() if size < 2 or not 1 <= copies <= MAX_COPIES]:
            raise UserError(
                f"deduplicate: repeat ({invalid[0]}: {self.repeat[invalid[0]]}) must map sizes of 2 or more to 1 to "
                f"{MAX_COPIES} copies."
            )

    @property
    def counts_duplicates(self) -> bool:
        """Whether sizes of clusters are counted."""
        return self.cluster_sizes or bool(self.repeat)

    @property
    def for_sketches(self) -> Deduplicate:
        """Return the options without those that do not affect sketches."""
        return replace(self, cluster_sizes=False, repeat={})

    def copies_of(self, cluster_sizes: np.ndarray) -> np.ndarray:
        """Return the number of copies of documents by the sizes of their clusters, int64 [documents]."""
        minimum = np.array([0, *sorted(self.repeat)])
        copies = np.array([1, *(self.repeat[size] for size in sorted(self.repeat))])
        return copies[np.searchsorted(minimum, cluster_sizes, side="right") - 1]
