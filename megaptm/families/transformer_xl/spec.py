"""Options of adaptive token tables (arXiv:1809.10853), and of relative attention (Transformer-XL,
arXiv:1901.02860)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from megaptm.spec import AttentionSpec, Block, ModelSpec, Size, TokenInput


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

    def errors(self, block: Block, size: Size) -> Iterator[str]:
        if any(record.kind != self.kind for record in block.attentions):
            yield "attention is relative in some layers only: use it in all layers of the stack, or in none."
        conflicts = {
            f"position is {block.position}": block.position != "none",
            f"norm.position is {block.norm.position}": block.norm.position not in ("pre", "post"),
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


@dataclass(frozen=True, kw_only=True)
class AdaptiveInput(TokenInput):
    """Adaptive input and softmax (arXiv:1609.04309, arXiv:1809.10853): the vocabulary, most frequent token first, is
    cut into clusters, each with a narrower table than the one before. Without cutoffs it has one table."""

    costs = "megaptm.families.transformer_xl.adaptive_costs:AdaptiveTokenCosts"
    size_keys = ("cutoffs", "division")
    size_defaults = MappingProxyType({"cutoffs": (), "division": 1})
    absence = "has no adaptive token table"

    def errors(self, spec: ModelSpec) -> Iterator[str]:
        from megaptm.families.transformer_xl.adaptive_costs import cluster_errors

        if adaptive_cutoffs(spec.size):
            yield from cluster_errors(spec)

    def key_needing_sorted_ids(self, size: Size) -> str:
        return "cutoffs" if adaptive_cutoffs(size) else ""


def adaptive_cutoffs(size: Size) -> tuple[int, ...]:
    """Return the first id of each further cluster of an adaptive token table."""
    return size.inputs.get("cutoffs", ())


def adaptive_division(size: Size) -> int:
    """Return the factor by which the width of adaptive token tables decreases from cluster to cluster."""
    return size.inputs.get("division", 1)
