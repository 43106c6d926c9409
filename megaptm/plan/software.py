"""Properties of the training software: of megaptm, or of a published run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Software:
    """Properties of training software that determine its speed and memory.

    `MEGAPTM` describes this engine. Other values describe published runs (`benchmarks/published`), which test the
    formulas: one formula with a switch is easier to check than two.
    """

    attention: Literal["fused", "first-fused", "materialized"] = "fused"
    """Whether attention writes scores [S, S] to memory; `first-fused`: fused kernels before FlashAttention-2."""
    fused_softmax: bool = True
    """Whether scaling, masking and softmax of written scores are one pass over memory."""
    fused_residual: bool = False
    """Whether bias, dropout and residual sum are one pass over memory."""
    fused_gradient_sum: bool = False
    """Whether the matrix product of a weight gradient is added to the float32 sum within one kernel."""
    tensor_overlap: Literal["none", "backward", "pieces"] = "backward"
    """Overlap of tensor-parallel communication with matrix products: none, with those of weight gradients, or with all,
    in pieces."""
    gradient_bytes: int = 4
    """Bytes of one gradient element when data ranks sum gradients."""
    gradient_overlap: bool = True
    """Whether data ranks sum the gradients of a bucket while the next one is computed."""
    parameter_overlap: bool = False
    """Whether updated weights are gathered while the next step starts."""
    sliced_boundaries: bool = False
    """Whether each tensor rank sends a slice of the hidden states between pipeline stages even without sequence
    parallelism."""
    boundary_overlap: bool = False
    """Whether messages between pipeline stages overlap with matrix products."""
    chunked_logits: bool = True
    """Whether logits are computed for a chunk of positions at a time."""
    fused_loss: bool = True
    """Whether the gradient of chunked logits replaces them, as on GPUs with triton."""


# parallel/engine.py, parallel/gradients.py, parallel/optimizers, layers/accumulate.py, losses/token.py
MEGAPTM = Software(fused_gradient_sum=True)
