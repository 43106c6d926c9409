"""Heads of an exported model that no loss has trained: readers of the folder would take them for trained ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import Tensor
from torch.nn.functional import cosine_similarity

from megaptm.models.initial import initial_value
from megaptm.spec import ModelSpec

SAME_DIRECTION = 1 - 1e-5


def list_untrained_heads(
    spec: ModelSpec, weights: Mapping[str, Tensor], *, losses: Collection[str], seed: int
) -> tuple[str, ...]:
    """Return the heads whose matrices still have their initial values of this seed, which weight decay may have scaled.
    Heads of `losses` are trained, and imported ones have other values."""
    untrained = []
    for head in (head for head in spec.family.heads if head not in losses):
        matrices = {name: weights[name] for name in weights if name.startswith(f"head.{head}.")}
        matrices = {name: weight for name, weight in matrices.items() if weight.dim() > 1}
        initial = {name: initial_value(spec, name, tuple(weight.shape), seed) for name, weight in matrices.items()}
        likeness = [cosine_similarity(matrices[name].flatten(), initial[name].flatten(), 0) for name in matrices]
        if likeness and min(likeness) > SAME_DIRECTION:
            untrained.append(head)
    return tuple(untrained)
