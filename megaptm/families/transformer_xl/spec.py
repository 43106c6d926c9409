"""Options of relative attention (Transformer-XL, arXiv:1901.02860; XLNet, arXiv:1906.08237)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from megaptm.spec import AttentionSpec, Block, Size


@dataclass(frozen=True, kw_only=True)
class RelativeSpec(AttentionSpec):
    """Attention with scores of content and distance, from sinusoids, over a sequence and a recurrence cache
    (Transformer-XL, arXiv:1901.02860). All layers of a stack have it."""

    kind = "relative"
    costs = "megaptm.families.transformer_xl.costs:RelativeAttentionCosts"
    module = "megaptm.families.transformer_xl.attention:RelativeAttention"
    stack = "megaptm.families.transformer_xl.stack:RelativeStack"
    caches_states = True
    scores_distances = True

    biases: Literal["stack", "layer"] = "stack"
    """Owner of the query biases u and v: the `stack` (Transformer-XL) or each `layer` (XLNet)."""
    segments: bool = False
    """Whether scores also encode if query and key share a segment (XLNet, arXiv:1906.08237, 2.5)."""
    query_stream: bool = False
    """Whether a query stream runs beside the content stream: one query for each target position, which attends to the
    positions before it in the factorization order, itself excluded (XLNet, arXiv:1906.08237, 2.3)."""
    cached: Literal["sequence", "half"] = "sequence"
    """Part of a sequence that enters the recurrence cache: all of it, or its first `half` (XLNet, whose sequences
    overlap by half)."""

    def errors(self, block: Block, size: Size) -> Iterator[str]:
        if any(record.kind != self.kind for record in block.attentions):
            yield "attention is relative in some layers only: use it in all layers of the stack, or in none."
        conflicts = {
            f"position is {block.position}": block.position != "none",
            "norm.position is parallel": block.norm.position == "parallel",
            "attention.bias is no-keys": self.bias == "no-keys",
            f"cross is {block.cross}": block.cross is not None,
            f"residual is {block.residual.kind}": block.residual.stack != "",
        }
        for conflict in (conflict for conflict, exists in conflicts.items() if exists):
            yield f"{conflict}, which relative attention does not support: change either."
        if size.key_heads != size.heads:
            yield f"kv_heads ({size.key_heads}): relative attention has as many key heads as heads; leave kv_heads out."
        if size.width % 2:
            yield f"width ({size.width}) must be even: relative attention has pairs of sine and cosine."
