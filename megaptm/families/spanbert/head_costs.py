"""Costs of the heads of SpanBERT."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from megaptm.layers.costs import LinearShape
from megaptm.layers.layer_costs import norm_parameters
from megaptm.models.head_costs import HeadCosts


class SpanBoundaryHeadCosts(HeadCosts):
    """Costs of SpanBERT's span boundary head (arXiv:1907.10529, 3.2), which predicts the tokens of a masked span from
    the two positions around it. Two layers with norms, then token table and bias."""

    name = "span-boundary"
    module = "megaptm.families.spanbert.head_modules:SpanBoundaryHead"
    label_field = "span_labels"
    predicted_only = True
    rows = 1
    offsets: ClassVar[int] = 20
    """Number of positions in a span that have an embedding in SpanBERT's head."""
    offset_width: ClassVar[int] = 200
    """Width of the position table in SpanBERT's head, for any model width (as in the released code)."""

    @property
    def linears(self) -> Mapping[str, LinearShape]:
        width, table = self.width, self.table_width
        return {
            "first": LinearShape(2 * width + self.offset_width, width, True),
            "second": LinearShape(width, table, True),
        }

    @property
    def other_parameters(self) -> int:
        norms = sum(norm_parameters(self.block, linear.outputs) for linear in self.linears.values())
        return self.offsets * self.offset_width + norms


HEADS = (SpanBoundaryHeadCosts,)
