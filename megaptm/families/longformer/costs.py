"""Linear layers and costs of window attention."""

from __future__ import annotations

from dataclasses import replace

from megaptm.layers.attention_costs import SelfAttentionCosts
from megaptm.layers.costs import LinearShape
from megaptm.layers.pattern import SlidingWindow
from megaptm.spec import Block, Size


class WindowAttentionCosts(SelfAttentionCosts):
    """Self-attention within a sliding window. Global tokens have projections of their own, with rows ordered like
    `qkv`."""

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        super().__init__(block, size, memory)
        window, dilation, causal = self.attention.window, self.attention.dilation, block.causal
        self.pattern = SlidingWindow(window if causal else window // 2, 0 if causal else window // 2, dilation)
        of_tokens = LinearShape(size.width, 3 * self.features, bool(self.attention.bias), "columns", matrices=3)
        self.linears = {**self.linears, "global_qkv": replace(of_tokens, interleave=size.key_width, global_only=True)}
