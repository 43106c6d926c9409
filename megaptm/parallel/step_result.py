"""Result of a step of any engine, and its errors."""

from __future__ import annotations

from dataclasses import dataclass

from megaptm.errors import UserError

REMEDY = (
    "lower optimizer.lr, look at the samples of that step with `megaptm corpus inspect`, or skip them "
    "(train.skip_batches). Earlier checkpoints are unchanged."
)


class DivergedError(UserError):
    """A loss or gradient is not finite; later steps would be meaningless."""


class NoLabelsError(UserError):
    """No sample of a step has a label. The weights are unchanged."""


@dataclass(frozen=True)
class StepResult:
    """Result of a step, the same on every process."""

    losses: dict[str, float]
    """Mean of each loss over its labels in the global batch."""
    loss: float
    """Weighted sum of the losses: the minimized value."""
    gradient_norm: float | None
    """None if weights are updated many times within a step, so that there is no single gradient."""
    counts: dict[str, int]
    """Number of labels of each loss."""
    loss_scale: float | None = None
    """Loss scale of the step. None without one."""
    is_skipped: bool = False
    """Whether the gradients were infinite at this loss scale, so that the step changed no weight."""
