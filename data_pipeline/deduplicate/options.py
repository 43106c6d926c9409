"""What is to be found: equal documents, paragraphs that come again, documents that are nearly another."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from megaptm.errors import UserError

RECALL = 0.99
"""Least share of the pairs just at the threshold that must meet in a band."""


@dataclass(frozen=True, kw_only=True)
class Near:
    """Which documents are too much alike: MinHash (Broder, 1997) with bands (Leskovec et al., Mining of Massive
    Datasets, section 3.4)."""

    threshold: float = 0.8
    """Jaccard similarity, of the sets of word n-grams of two documents, from which they are near duplicates."""
    ngram: int = 5
    """Words in a shingle."""
    hashes: int = 128
    """Numbers in a signature: the estimated similarity has a standard deviation of at most 0.5 / sqrt(hashes)."""
    seed: int = 0
    """Another seed makes other, equally good signatures."""

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise UserError(f"threshold must be a similarity above 0 and at most 1, not {self.threshold}.")
        if self.ngram < 1:
            raise UserError(f"ngram must be 1 word or more, not {self.ngram}.")
        if not 16 <= self.hashes <= 1024 or self.hashes % 2:
            raise UserError(f"hashes must be an even number from 16 to 1024, not {self.hashes}.")
        if self.seed < 0:
            raise UserError(f"seed must be 0 or more, not {self.seed}.")

    @property
    def rows(self) -> int:
        """Numbers of a signature in a band: as many, so as few chance meetings, as RECALL leaves room for."""
        rows = 1
        while 2 * (rows + 1) <= self.hashes and self.meeting(self.threshold, rows + 1) >= RECALL:
            rows += 1
        return rows

    @property
    def bands(self) -> int:
        return self.hashes // self.rows

    def meeting(self, similarity: float, rows: int | None = None) -> float:
        """The probability that two documents so similar agree on all numbers of at least one band."""
        rows = rows or self.rows
        return 1 - (1 - similarity**rows) ** (self.hashes // rows)

    @property
    def possible(self) -> int:
        """Numbers two signatures share from which their documents may be near duplicates, as 999 of 1000 pairs just at
        the threshold do: the threshold less three standard deviations of the estimate."""
        return math.ceil((self.threshold - 3 * self._deviation) * self.hashes)

    @property
    def certain(self) -> int:
        """Shared numbers from which they are, without looking at the texts: three standard deviations above."""
        return min(math.ceil((self.threshold + 3 * self._deviation) * self.hashes), self.hashes)

    @property
    def _deviation(self) -> float:
        return math.sqrt(self.threshold * (1 - self.threshold) / self.hashes)


@dataclass(frozen=True, kw_only=True)
class Paragraphs:
    """Which paragraphs are cut out where they come again, character for character."""

    between: Literal["blank lines", "lines"] = "blank lines"
    """What divides paragraphs; the text of web pages has one on each line."""
    characters: int = 80
    """A shorter paragraph stays wherever it stands: headings, table cells, `Thank you.`"""
    code: bool = False
    """Cut documents of code too; by default they are left whole."""

    def __post_init__(self) -> None:
        if self.characters < 1:
            raise UserError(f"characters must be 1 or more, not {self.characters}.")


@dataclass(frozen=True, kw_only=True)
class Deduplicate:
    """What is left out because the corpus has it already."""

    documents: bool = True
    """A document equal to an earlier one."""
    paragraphs: Paragraphs | None = None
    """A paragraph equal to an earlier one."""
    near: Near | None = None
    """A document nearly equal to another that stays."""
