"""Early stopping by a validation loss (`train.stop`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from megaptm.config import StopConfig
from megaptm.errors import UserError, nearest

FIELD = "early_stop"
"""Key of early stopping in a checkpoint's state."""
PREFIX = "validation/"


class EarlyStop:
    """Lowest value of a validation loss, and the number of validations since. Checkpoints contain them, so that a
    resumed run stops at the same step."""

    def __init__(self, config: StopConfig | None, losses: Collection[str]) -> None:
        """`losses`: names of the run's losses, one of which the config may name."""
        self.config = config
        self.lowest: float | None = None
        self.num_worse = 0
        metrics = [f"{PREFIX}{name}" for name in ("loss", *losses)]
        if config is not None and config.metric not in metrics:
            raise UserError(
                f"train.stop.metric ({config.metric}) is no metric of this run; {nearest(config.metric, metrics)}"
            )

    def add(self, means: Mapping[str, float]) -> None:
        """Add the losses of a validation. A loss without labels in it does not count."""
        value = None if self.config is None else means.get(self.config.metric.removeprefix(PREFIX))
        if self.config is None or value is None:
            return
        if self.lowest is None or value < self.lowest - self.config.min_delta:
            self.lowest, self.num_worse = value, 0
        else:
            self.num_worse += 1

    def reason(self) -> str | None:
        """Return why the run ends here; None if it goes on."""
        if self.config is None or self.num_worse < self.config.patience:
            return None
        return (
            f"early stopping: {self.config.metric} has not fallen below {self.lowest:.4f} in {self.num_worse} "
            "validations (train.stop)"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state that checkpoints keep."""
        return {"lowest": self.lowest, "num_worse": self.num_worse} if self.config is not None else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint; a run without early stopping has none."""
        lowest, num_worse = state.get("lowest"), state.get("num_worse")
        self.lowest = float(lowest) if isinstance(lowest, int | float) else None
        self.num_worse = num_worse if isinstance(num_worse, int) else 0
