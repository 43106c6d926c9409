"""Linear layers and costs of two-stream attention."""

from __future__ import annotations

from collections.abc import Iterator

from megaptm.families.transformer_xl.costs import RelativeAttentionCosts
from megaptm.families.xlnet.spec import TwoStreamSpec
from megaptm.layers.costs import LinearShape
from megaptm.spec import Block, Size


class TwoStreamAttentionCosts(RelativeAttentionCosts):
    """Costs of XLNet's relative attention with vectors of segments."""

    score_terms = 2
    launches = 66

    @classmethod
    def stack_linears(  # type: ignore[override]
        cls, record: TwoStreamSpec, block: Block, size: Size, layers: range
    ) -> Iterator[LinearShape]:
        """Yield the query biases of two-stream attention, and the vectors of segments."""
        yield from super().stack_linears(record, block, size, layers)
        bias = LinearShape(size.heads, size.key_width, False, "heads")
        table = LinearShape(size.heads, 2 * size.key_width, False, "heads")
        yield from [bias, table] * cls.num_owners(block, size, layers)
