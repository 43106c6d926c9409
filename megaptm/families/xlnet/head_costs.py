"""Costs of the heads of XLNet."""

from __future__ import annotations

from collections.abc import Mapping

from megaptm.layers.costs import LinearShape
from megaptm.models.head_costs import HeadCosts


class PermutationHeadCosts(HeadCosts):
    """Costs of XLNet's permutation language model head: tokens predicted in an order from the query stream, by token
    table and bias."""

    name = "permutation-lm"
    module = "megaptm.families.xlnet.head_modules:PermutationHead"
    predicted_only = True
    rows = 1

    @property
    def linears(self) -> Mapping[str, LinearShape]:
        return {}


HEADS = (PermutationHeadCosts,)
