"""Options of block-sparse attention (BigBird, arXiv:2007.14062)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from megaptm.spec import AttentionSpec, Block, PositiveInt, Size


@dataclass(frozen=True, kw_only=True)
class BlockSparseSpec(AttentionSpec):
    """Attention to neighboring, random, first and last blocks (BigBird, arXiv:2007.14062)."""

    kind = "blocks"
    costs = "megaptm.families.bigbird.costs:BlockAttentionCosts"
    options = (*AttentionSpec.options, "block_size", "num_random_blocks", "seed", "edge_blocks")
    reads_global_tokens = True

    block_size: PositiveInt = 64
    """Number of positions in a block of BigBird's attention."""
    num_random_blocks: Annotated[int, Field(ge=0, le=1 << 10)] = 3
    """Number of random blocks that each block attends to; sampled for each layer and head."""
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    """Seed of BigBird's random blocks, in addition to layer and head. Part of the model: evaluation must use the blocks
    of training."""
    edge_blocks: bool = True
    """Whether the first and last block are global (BigBird-ITC). If false, only the positions that the batch's field
    `global_tokens` marks are global (BigBird-ETC)."""

    def errors(self, block: Block, size: Size) -> Iterator[str]:
        if block.causal:
            yield (
                "attention is block-sparse and visibility is causal, but all positions attend to the last block: use "
                "full or ordered visibility."
            )
