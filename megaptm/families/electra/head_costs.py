"""Costs of the heads of ELECTRA."""

from __future__ import annotations

from collections.abc import Mapping

from megaptm.layers.costs import LinearShape
from megaptm.models.head_costs import HeadCosts


class ReplacedHeadCosts(HeadCosts):
    """Replaced token detection (ELECTRA, arXiv:2003.10555, section 2): linear layer and one logit per position."""

    name = "replaced-token"
    module = "megaptm.families.electra.head_modules:ReplacedHead"
    label_field = "replaced"
    projects = False
    labels_from_samples = True

    @property
    def linears(self) -> Mapping[str, LinearShape]:
        width = self.width
        return {"transform": LinearShape(width, width, True), "classify": LinearShape(width, 1, True)}


HEADS = (ReplacedHeadCosts,)
