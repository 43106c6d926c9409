"""What the code that runs a plan does: ours, or that of a published run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from megaptm.bricks import ModelChunk
    from megaptm.plan.costs import Passes
    from megaptm.plan.machine import Machine
    from megaptm.plan.workload import Workload


class Sharding(ABC):
    """Weights, gradients and moments are all divided over data ranks, and gathered when they are needed."""

    @abstractmethod
    def seconds(self, machine: Machine, work: Workload, chunks: list[ModelChunk], passes: Passes) -> float:
        """Of a step's communication that nothing hides, on a stage that holds these chunks."""

    @abstractmethod
    def gathered_bytes(self, work: Workload, chunks: list[ModelChunk]) -> tuple[float, float]:
        """Whole weights and whole gradients on a rank at once."""


@dataclass(frozen=True, kw_only=True)
class Software:
    """Facts about an engine that its speed and memory follow from.

    Ours has the defaults. Every other value is there for published runs (`benchmarks/published`): the formulas are held
    to what those engines did, and one formula with a switch is easier to check than two.
    """

    attention: Literal["fused", "first-fused", "materialized"] = "fused"
    """Whether scores [S, S] are ever written to memory; `first-fused` kernels are those before FlashAttention-2."""
    fused_softmax: bool = True
    """Where scores are written: whether scaling, masking and softmax are one pass over them."""
    fused_residual: bool = False
    """Whether bias, dropout and residual sum are one pass over memory."""
    fused_gradient_sum: bool = False
    """Whether the product that gives a weight's gradient adds it to the float32 sum itself."""
    tensor_overlap: Literal["none", "backward", "pieces"] = "backward"
    """When tensor-parallel communication runs beside matrix products: beside the weights' gradients, or always, cut
    into pieces that follow each other."""
    gradient_bytes: int = 4
    """Bytes of one gradient as data ranks sum it."""
    gradient_overlap: bool = True
    """Whether gradients of one bucket are summed over data ranks while the next is computed."""
    parameter_overlap: bool = False
    """Whether updated weights are gathered while the next step begins."""
    sliced_boundaries: bool = False
    """Whether tensor ranks send each a slice of what passes between stages, also without sequence parallelism."""
    boundary_overlap: bool = False
    """Whether messages between stages run beside products."""
    sharding: Sharding | None = None
    """How data ranks divide weights, gradients and moments among them; absent: as the layout says."""
    chunked_logits: bool = True
    """Whether logits exist for a chunk of rows at a time, on one tensor rank."""


# parallel/engine.py, parallel/stage.py, parallel/optimizers, losses/token.py
MEGAPTM = Software()
