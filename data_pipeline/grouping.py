"""Options of groups: domains and buckets of a quality score, from which mixes select."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from megaptm.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """Groups of documents. Each shard has documents of one group."""

    quality: tuple[float, ...] = ()
    """Edges of the buckets of the quality score, ascending: `[0, 0.5, 0.8, 1]` makes three. A score on an edge is in
    the bucket above; scores from the last edge on are in the last bucket; documents below the first are dropped."""
    shares: tuple[float, ...] = ()
    """Share of the documents of each bucket that is kept, sampled by hash. Default: all."""
    note: str = "quality"
    """Note with the score: the note of the step `score-quality`, or a field of the source (`keep: [score]`)."""
    domain: str | None = None
    """Note with the name of the domain: `domain` for sources with the setting `domain`, or a field (`keep`). Default:
    documents have no domains."""

    def __post_init__(self) -> None:
        if not self.quality and self.domain is None:
            raise UserError("groups: set `quality` (edges of buckets) or `domain` (name of a note).")
        if self.quality and (len(self.quality) < 2 or not all(low < high for low, high in pairwise(self.quality))):
            raise UserError(f"groups: quality ({list(self.quality)}) must be two or more ascending edges.")
        if not all(map(math.isfinite, self.quality)):
            raise UserError(f"groups: quality ({list(self.quality)}) must be finite numbers.")
        if self.shares and len(self.shares) != self.num_buckets:
            raise UserError(
                f"groups: shares has {len(self.shares)} values for {self.num_buckets} buckets: give one each."
            )
        if not all(0 <= share <= 1 for share in self.shares):
            raise UserError(f"groups: shares ({list(self.shares)}) must be from 0 to 1.")
        if self.shares and not any(self.shares):
            raise UserError("groups: shares are all 0: no document would be kept.")

    @property
    def num_buckets(self) -> int:
        return max(1, len(self.quality) - 1)
