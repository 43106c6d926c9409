"""Held-out losses that a learning rate schedule depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FIELD = "held_out"
"""Key of the held-out loss in a checkpoint's state."""


@dataclass
class HeldOutLoss:
    """Last held-out loss, and the first step at which the loss rose. Checkpoints contain it, so that a resumed run has
    the same learning rate."""

    last: float | None = None
    rose: int | None = None
    """Number of steps done when the loss rose for the first time."""

    def add(self, step: int, loss: float) -> None:
        """Add the held-out loss after `step` steps."""
        if self.rose is None and self.last is not None and loss > self.last:
            self.rose = step
        self.last = loss

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the held-out losses from a checkpoint's state; reset them if the state is absent there."""
        last, rose = state.get("last"), state.get("rose")
        self.last = float(last) if isinstance(last, int | float) else None
        self.rose = rose if isinstance(rose, int) else None
