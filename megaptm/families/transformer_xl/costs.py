"""Linear layers and costs of relative attention."""

from __future__ import annotations

from collections.abc import Iterator

from megaptm.families.transformer_xl.spec import RelativeSpec
from megaptm.layers.attention_costs import SelfAttentionCosts
from megaptm.layers.costs import LinearShape
from megaptm.spec import Block, Size


class RelativeAttentionCosts(SelfAttentionCosts):
    """Costs of Transformer-XL's relative attention: content and distance scores, over a sequence and its recurrence
    cache. Distances are projected to keys, and each head adds bias vectors to its queries."""

    scored = True
    score_terms = 1
    launches = 40

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        super().__init__(block, size, memory)
        distances = LinearShape(size.width, self.features, False, "columns", reads_distances=True)
        self.linears = {**self.linears, "place": distances}
        self.cached_positions = size.cached_positions

    @classmethod
    def stack_linears(cls, record: RelativeSpec, block: Block, size: Size, layers: range) -> Iterator[LinearShape]:
        """Yield the query biases of relative attention."""
        bias = LinearShape(size.heads, size.key_width, False, "heads")
        yield from [bias] * (2 if record.biases == "stack" else 2 * cls.num_owners(block, size, layers))

    @staticmethod
    def num_owners(block: Block, size: Size, layers: range) -> int:
        """Return the number of layers with their own relative attention."""
        if "attention" not in block.sharing.sublayers:
            return len(layers)
        return len({block.sharing.owner(layer, size.layers) for layer in layers})

    @property
    def cache_multiply_adds(self) -> int:
        return self.cached_positions * 2 * self.features * self.size.width

    def pairs(self, queries: int, keys: int) -> int:
        """Return the number of pairs of relative attention: of queries with keys, including cached ones, and with every
        possible distance."""
        keys += self.cached_positions
        distances = keys + (1 if self.block.causal else queries)
        return queries * keys + queries * distances // 2
