"""Options of two-stream attention, and the input of its queries (XLNet, arXiv:1906.08237)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from megaptm.families.transformer_xl.spec import RelativeSpec
from megaptm.spec import InputSpec, ModelSpec


@dataclass(frozen=True, kw_only=True)
class TwoStreamSpec(RelativeSpec):
    """Relative attention of a content stream and a query stream (2.3), whose scores also encode if query and key share
    a segment (2.5). Sequences overlap by half, so their first half enters the recurrence cache."""

    costs = "megaptm.families.xlnet.costs:TwoStreamAttentionCosts"
    module = "megaptm.families.xlnet.attention:TwoStreamAttention"
    stack = "megaptm.families.xlnet.stack:TwoStreamStack"
    fields = ("backward", "segments", "masked_positions")


@dataclass(frozen=True, kw_only=True)
class QueryInput(InputSpec):
    """Input of XLNet's query stream, in addition to the content stream: one query for each target position, which
    attends to the positions before it in the factorization order, itself excluded (2.3)."""

    name = "query"
    costs = "megaptm.models.embed_costs:TableCosts"
    module = "megaptm.families.xlnet.attention:QueryTable"
    adds_queries = True
    rows: ClassVar[int] = 1

    def errors(self, spec: ModelSpec) -> Iterator[str]:
        blocks = spec.family.stacks.values()
        if len(blocks) > 1 or any(
            not isinstance(record, TwoStreamSpec) for record in spec.family.first_block.attentions
        ):
            yield f"{spec.name}: queries beside the text (QueryInput) need one stack with attention TwoStreamSpec()."
