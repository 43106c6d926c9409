"""Linear layers and costs of disentangled attention, and of the tables of its stacks."""

from __future__ import annotations

from collections.abc import Iterator

from megaptm.families.deberta.spec import DisentangledSpec
from megaptm.layers.attention_costs import SelfAttentionCosts
from megaptm.layers.costs import LinearShape
from megaptm.spec import Block, Size


class DisentangledAttentionCosts(SelfAttentionCosts):
    """Attention with content and distance scores. Rows of the distance table are projected to keys and queries."""

    scored = True
    score_terms = 2
    launches = 40

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        super().__init__(block, size, memory)
        if self.attention.projections == "own":
            bias = self.attention.bias
            self.linears = {
                **self.linears,
                "position_key": LinearShape(size.width, self.features, bias is True, "columns", reads_distances=True),
                "position_query": LinearShape(size.width, self.features, bool(bias), "columns", reads_distances=True),
            }

    @classmethod
    def stack_linears(cls, record: DisentangledSpec, block: Block, size: Size, layers: range) -> Iterator[LinearShape]:
        """Yield DeBERTa's distance table, and its convolution beside the first layer."""
        yield LinearShape(size.width, record.table_rows, False)
        if record.convolution and 0 in layers:
            yield convolution_shape(size.width)

    @classmethod
    def stack_norms(cls, record: DisentangledSpec, layers: range) -> int:
        """Return the number of norms of a stack with disentangled attention: of the distance table, and of the
        convolution."""
        return (bool(layers) and record.norm) + (record.convolution and 0 in layers)

    @classmethod
    def repeated_layers(cls, record: DisentangledSpec, size: Size) -> tuple[int, ...]:
        """Return the last layer, which DeBERTa's mask decoder runs twice."""
        return (size.layers - 1,) if record.mask_decoder else ()

    @classmethod
    def position_table(cls, record: DisentangledSpec, size: Size, layers: range, positions: int) -> LinearShape | None:
        """Return the position table of DeBERTa's mask decoder."""
        return LinearShape(size.width, positions, False) if record.mask_decoder and size.layers - 1 in layers else None

    def pairs(self, queries: int, keys: int) -> int:
        """Return the number of pairs of disentangled attention: of queries and keys, and of each query or key with
        every possible distance."""
        return queries * keys + queries * min(2 * keys, self.attention.table_rows)


def convolution_shape(width: int) -> LinearShape:
    """Return the linear layer of DeBERTa's convolution over a position and its two neighbors."""
    return LinearShape(3 * width, width, bias=True)
