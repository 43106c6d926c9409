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
    """Whether scaling, masking and softmax of materialized scores are one pass over memory."""
    fused_norm: bool = True
    """Whether a norm is one kernel. Otherwise it is computed in float32, one operation after the other."""
    fused_activation: bool = True
    """Whether an activation function is one kernel, gated or not."""
    compiled: bool = False
    """Whether a compiler fuses the operations between matrix products, except across sums over a row."""
    autocast: bool = False
    """Whether weights are float32 and cast for each micro-batch, and norms and the residual stream are float32."""
    gathered_scores: bool = False
    """Whether attention scores of distances are gathered by index, not read with another stride."""
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
    sharding_group: Literal["all", "node"] = "all"
    """Data ranks that divide state: all of them, or those of a node, so that each node has a copy."""
    layer_gathers: int = 1
    """Number of collectives in which full sharding gathers the weights of a layer."""
    gather_overlap: bool = True
    """Whether full sharding gathers a layer while others are computed."""
    parameter_overlap: bool = False
    """Whether updated weights are gathered while the next step starts."""
    sliced_boundaries: bool = False
    """Whether each tensor rank sends a slice of the hidden states between pipeline stages even without sequence
    parallelism."""
    blocking_boundaries: bool = False
    """Whether a stage sends and receives its messages one after the other, as DeepSpeed's pipeline does."""
    boundary_overlap: bool = False
    """Whether messages between pipeline stages overlap with matrix products."""
    launches: float = 57
    """Number of kernels of a sub-layer and micro-batch, both passes (T5-large, not compiled: 6,845 in 120
    sub-layers)."""
    chunked_logits: bool = True
    """Whether logits are computed for a chunk of positions at a time."""
    fused_loss: bool = True
    """Whether the gradient of chunked logits replaces them, as on GPUs with triton."""


# tests/cuda/launches.yaml, parallel/engine.py, parallel/gradients.py, parallel/optimizers, layers/accumulate.py,
# losses/token.py
MEGAPTM = Software(fused_gradient_sum=True, compiled=True, launches=21)
