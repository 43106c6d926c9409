"""Result of a training step of any engine, and its errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from megaptm.errors import UserError

REMEDY = (
    "lower optimizer.lr, look at the samples of that step with `megaptm inspect RUN` (--step), or skip them "
    "(train.skip_batches). Earlier checkpoints are unchanged."
)


class DivergedError(UserError):
    """Raised if a loss or gradient is not finite; later training steps would be meaningless."""


class RollBackError(UserError):
    """Raised on all ranks if a step is a spike because of which the run returns to its last checkpoint. The weights are
    unchanged."""

    def __init__(self, spike: str) -> None:
        self.spike = spike
        super().__init__(spike)


class NoLabelsError(UserError):
    """Raised if no sample of a training step has a label. The weights are unchanged."""


@dataclass(frozen=True)
class StepResult:
    """Result of a training step, the same on every rank."""

    losses: dict[str, float]
    """Mean of each loss over its labels in the global batch."""
    loss: float
    """Weighted sum of the losses of a step, which training minimizes."""
    gradient_norm: float | None
    """Norm of the step's gradient. None if a step updates the weights many times, so that it has no single gradient."""
    counts: dict[str, int]
    """Number of labels of each loss in the global batch."""
    loss_scale: float | None = None
    """Loss scale of the step. None if training uses no loss scale."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Further numbers of the step, from engine hooks."""
    is_skipped: bool = False
    """Whether the step changed no weight, because of a spike or of gradients that were infinite at this loss scale."""
    spike: str | None = None
    """Description of the spike, if the step is one."""
