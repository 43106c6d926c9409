"""Callback of a learning rate range test (`megaptm tune lr`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from megaptm.report.lr_range import LOSS, RATE, smooth
from megaptm.train.callbacks import Callback, RunState

if TYPE_CHECKING:
    from megaptm.parallel.step_result import StepResult


class RangeTest(Callback):
    """Recorder of the loss by learning rate, which ends the run when the loss diverges, or after `steps` steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.losses: list[float] = []

    def on_step_end(self, run: RunState, result: StepResult) -> None:
        """Record a step, and end the run if it was the last one."""
        run.log_metrics({LOSS: result.loss, RATE: run.learning_rate})
        self.losses.append(result.loss)
        if len(smooth(self.losses)) < len(self.losses):
            run.request_stop(f"the loss diverges at the learning rate {run.learning_rate:.2g}")
        elif run.step >= self.steps:
            run.request_stop("all learning rates are tested")

    def state_dict(self) -> dict[str, Any]:
        """Return the losses so far."""
        return {"losses": self.losses}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the losses of a test that was interrupted."""
        self.losses = [*state["losses"]]
