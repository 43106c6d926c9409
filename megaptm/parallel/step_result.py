"""What a step of any engine gives, and what may be wrong with it."""

from __future__ import annotations

from dataclasses import dataclass

from megaptm.errors import UserError

REMEDY = (
    "lower optimizer.lr, look at that step's samples with `megaptm corpus inspect`, or pass over them (train.skip); "
    "checkpoints before it are untouched."
)


class DivergedError(UserError):
    """A loss or a gradient is not a finite number; nothing later can be trusted."""


class NothingAskedError(UserError):
    """No sample of a step has a label: there is nothing to learn, and the weights are as they were."""


@dataclass(frozen=True)
class StepResult:
    """What a step did; the same on every process."""

    losses: dict[str, float]
    """Mean of each loss over what was asked in the global batch."""
    loss: float
    """Their weighted sum: what was minimised."""
    gradient_norm: float | None
    """None where weights move so often within a step that it has no one gradient."""
    counts: dict[str, int]
