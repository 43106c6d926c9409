"""Validation losses on which a learning rate schedule and the retained checkpoints depend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from megaptm.config.schema import KeepConfig

FIELD = "held_out"
"""Key of the validation loss in a checkpoint's state."""


@dataclass
class HeldOutLoss:
    """Last validation loss, and the first step at which the loss rose. Checkpoints contain it, so that a resumed run
    has the same learning rate."""

    last: float | None = None
    rose: int | None = None
    """Number of finished steps when the validation loss rose for the first time."""
    losses: dict[int, float] = field(default_factory=dict)
    """Number of finished steps -> validation loss."""

    def add(self, step: int, loss: float) -> None:
        """Add the validation loss after `step` steps."""
        if self.rose is None and self.last is not None and loss > self.last:
            self.rose = step
        self.last = loss
        self.losses[step] = loss

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the validation losses from a checkpoint's state; reset them if the state has none."""
        last, rose = state.get("last"), state.get("rose")
        self.last = float(last) if isinstance(last, int | float) else None
        self.rose = rose if isinstance(rose, int) else None
        losses = state.get("losses")
        known = losses.items() if isinstance(losses, dict) else ()
        self.losses = {
            int(step): float(loss) for step, loss in known if step.isdecimal() and isinstance(loss, int | float)
        }

    def retained_steps(self, steps: Iterable[int], keep: KeepConfig) -> set[int]:
        """Return those of some steps whose checkpoints `checkpoint.keep` retains besides the newest and the tagged."""
        validated = sorted((step for step in steps if step in self.losses), key=lambda step: self.losses[step])
        return {*validated[: keep.best], *(step for step in steps if keep.every is not None and step % keep.every == 0)}
