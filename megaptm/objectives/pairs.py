"""Words from how often they come near each other: GloVe (Pennington et al., 2014).

The text is read once, before the first step, for its counts (`words.pairs`); what a run reads from then on are pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from megaptm.batch import BatchSpec
from megaptm.batch import Field as BatchField
from megaptm.objectives.objective import BaseObjective
from megaptm.objectives.windows import MinimumCount

PairWindow = Annotated[int, Field(ge=1, le=20)]
"""All of 1/1 .. 1/20 are whole multiples of 1/232,792,560: sums of them are exact, in whatever order they are made."""
AboveZero = Annotated[float, Field(gt=0, le=1e12)]
Power = Annotated[float, Field(ge=0, le=2)]


@dataclass(frozen=True)
class GloVe(BaseObjective):
    """The dot product of two words is the logarithm of how often they come near each other; the defaults are the
    paper's (section 4.2)."""

    name = "glove"
    losses: ClassVar = {"glove": 1.0}
    unit = "pairs"

    window: PairWindow = 10
    """Words to a side that count as near."""
    symmetric: bool = True
    """Whether words on both sides are a word's context, or those behind it alone."""
    distance_weighting: bool = True
    """Whether a pair d words apart counts 1/d, or 1."""
    x_max: AboveZero = 100.0
    """Count from which on each pair weighs as much; those that come less often weigh (count / x_max) ^ alpha."""
    alpha: Power = 0.75
    """That power."""
    bias_rate: AboveZero = 1.0
    """Rate of the biases: the released code moves them by 1, whatever the rate of the vectors."""
    min_count: MinimumCount = 5
    """Words that come less often are passed over, as those without an id are."""

    template = ("A", "A B")
    prompts = ()
    draws = False

    def raw_length(self, sequence: int) -> int:
        return sequence

    def batch(self, sequence: int, document_mask: bool) -> BatchSpec:
        integers = {name: BatchField((sequence,)) for name in ("words", "contexts")}
        return BatchSpec({"": sequence}, {**integers, "counts": BatchField((sequence,), "float64")})
