"""Options of window attention (Longformer, arXiv:2004.05150)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from megaptm.spec import AttentionSpec, Block, PositiveInt, Size


@dataclass(frozen=True, kw_only=True)
class WindowSpec(AttentionSpec):
    """Attention in a sliding window, and of positions that the batch's field `global_tokens` marks, which have
    projections of their own (Longformer, arXiv:2004.05150)."""

    kind = "window"
    costs = "megaptm.families.longformer.costs:WindowAttentionCosts"
    module = "megaptm.families.longformer.attention:WindowAttention"
    options = (*AttentionSpec.options, "window", "dilation")
    reads_global_tokens = True

    window: PositiveInt = 512
    """Number of positions to which a query attends in Longformer's window, besides its own. Half of them are on each
    side; with causal `visibility` all are before it."""
    dilation: PositiveInt = 1
    """Distance between neighboring attended positions of the window."""

    def errors(self, block: Block, size: Size) -> Iterator[str]:
        if self.window % 2 and not block.causal:
            yield f"attention.window ({self.window}) must be even: half of the window is on each side."
