"""Linear layers and costs of block-sparse attention."""

from __future__ import annotations

from megaptm.families.bigbird.pattern import SparseBlocks
from megaptm.layers.attention_costs import SelfAttentionCosts
from megaptm.spec import Block, Size


class BlockAttentionCosts(SelfAttentionCosts):
    """Costs of block-sparse self-attention (BigBird)."""

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        super().__init__(block, size, memory)
        record = self.attention
        self.pattern = SparseBlocks(
            record.block_size, record.num_random_blocks, record.edge_blocks, heads=range(size.heads), seed=record.seed
        )
