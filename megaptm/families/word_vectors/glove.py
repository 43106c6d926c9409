"""Word vectors from co-occurrence counts: GloVe (Pennington et al., 2014).

Counts are made once, before the first step (`pairs`). Training reads pairs of words and their counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from megaptm.batch import BatchField, BatchSpec
from megaptm.families.word_vectors.windows import MinimumCount
from megaptm.objectives.objective import BaseObjective

PairWindowSize = Annotated[int, Field(ge=1, le=20)]
"""Option of GloVe: window size. All of 1/1 ... 1/20 are multiples of 1/232,792,560, so that sums are exact in any
order."""
AboveZero = Annotated[float, Field(gt=0, le=1e12)]
Power = Annotated[float, Field(ge=0, le=2)]


@dataclass(frozen=True)
class GloVe(BaseObjective):
    """Objective of GloVe: the dot product of two word vectors approximates the logarithm of their co-occurrence count.
    Defaults are the paper's (section 4.2)."""

    name = "glove"
    losses: ClassVar = {"glove": 1.0}
    unit = "pairs"

    window: PairWindowSize = 10
    """Window of GloVe: number of context words on each side."""
    symmetric: bool = True
    """Whether GloVe's context includes words on both sides, or only words before."""
    distance_weighting: bool = True
    """Whether a pair of words at distance d counts 1/d, or 1."""
    x_max: AboveZero = 100.0
    """Count above which pairs of words have weight 1; below it the weight is (count / x_max) ^ alpha."""
    alpha: Power = 0.75
    """Exponent of the weight of a pair of words."""
    bias_rate: AboveZero = 1.0
    """Learning rate of the biases: 1 in the released code, independent of the vectors' rate."""
    min_count: MinimumCount = 5
    """Minimum number of occurrences of a word. Less frequent words are skipped, as words without an id are."""

    template = ("A", "A B")
    prompts = ()

    def raw_length(self, sequence: int) -> int:
        return sequence

    def batch_spec(self, sequence: int, document_mask: bool) -> BatchSpec:
        integers = {name: BatchField((sequence,)) for name in ("words", "contexts")}
        return BatchSpec({"": sequence}, {**integers, "counts": BatchField((sequence,), "float64")})
