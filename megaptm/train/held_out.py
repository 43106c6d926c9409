"""What a rate that falls when the held-out loss rises must remember of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FIELD = "held_out"
"""Of a checkpoint's state."""


@dataclass
class HeldOutLoss:
    """The last one, and whether one was above that before it. It is part of every checkpoint, so that a run goes on
    with the rate that it would have had."""

    last: float | None = None
    rose: int | None = None
    """Steps that were made when it was so for the first time."""

    def add(self, step: int, loss: float) -> None:
        """A loss after so many steps."""
        if self.rose is None and self.last is not None and loss > self.last:
            self.rose = step
        self.last = loss

    def restore(self, state: Mapping[str, Any]) -> None:
        """As a checkpoint has it; of one without it is as in the beginning."""
        last, rose = state.get("last"), state.get("rose")
        self.last = float(last) if isinstance(last, int | float) else None
        self.rose = rose if isinstance(rose, int) else None
