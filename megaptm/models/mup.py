"""Maximal update parametrization (muP, arXiv:2203.03466, table 8): initial values and learning rates by width.

With muP, activations and their changes in a step have the same size at any width, so that a learning rate that is best
for a narrow model is best for a wide one. The paper also multiplies logits by base width / width. Here the norm before
the projection is multiplied instead, which is the same function: a trained model needs no new kind of layer, and
its export is an ordinary model. Weight decay per step does not depend on the width (arXiv:2505.01618, table 1).
"""

from __future__ import annotations

from dataclasses import dataclass

from megaptm.models.head_costs import projected_norms
from megaptm.spec import ModelSpec


@dataclass(frozen=True)
class MupFactors:
    """Factors of muP for one parameter."""

    initial: float = 1.0
    """Factor of the initial value."""
    lr: float = 1.0
    """Factor of the learning rate of Adam."""


def mup_factors(spec: ModelSpec, name: str, num_axes: int) -> MupFactors:
    """Return the factors for a parameter of a model; 1 without muP, and at its base width.

    Matrices of layers and heads have a learning rate in proportion to 1 / width, and initial values to 1 / sqrt(width);
    tables, biases and norms are as at the base width, except the norms before the projections on the vocabulary.
    """
    if spec.mup_base_width is None:
        return MupFactors()
    ratio = spec.mup_base_width / spec.size.width
    module, _, kind = name.rpartition(".")
    if num_axes < 2:
        # The table's width may not grow: `spec.size.embedding`.
        if spec.size.embedding is not None or module not in projected_norms(spec):
            return MupFactors()
        # Logits with a factor of 1 / sqrt(width) need only the other half.
        factor = ratio**0.5 if spec.family.output.scale == "rsqrt-width" else ratio
        return MupFactors(factor, factor)
    if kind != "weight" or name.startswith("embed.") or module.endswith("table"):
        return MupFactors()
    # Other rules of initial values divide by the square root of the inputs themselves.
    return MupFactors(ratio**0.5 if spec.family.init.uses_std else 1.0, ratio)
