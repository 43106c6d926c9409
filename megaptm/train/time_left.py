"""Estimate of the remaining time of a run, which includes its validations and checkpoints."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from megaptm.config import Config

MIN_STEPS = 2
"""Number of steps after the first that an estimate needs. The first one also compiles, and fills caches."""
VALIDATION_SHARE = 1 / 3
"""Time of a validation batch as a share of a step, until a validation is measured: it has no backward pass."""


@dataclass
class TimeLeft:
    """Estimate of the remaining seconds, from the time since the first step of a job."""

    config: Config
    first_step: int
    start_time: float = field(default_factory=time.monotonic)
    num_validations: int = 0
    num_saves: int = 0

    def estimate(self, step: int, *, validation: float, checkpoint: float) -> float | None:
        """Return the remaining seconds after `step`, before its own validation and checkpoint; None after too few
        steps. `validation`, `checkpoint`: seconds spent on them since the first step."""
        train, num_steps = self.config.train, step - self.first_step
        if num_steps < MIN_STEPS:
            return None
        # The time between steps counts, too: callbacks, the report, other processes of the machine.
        pace = (time.monotonic() - self.start_time - validation - checkpoint) / num_steps
        sets = self.config.data.validation_sets.values()
        every, default = train.validate_every or 1, train.validate_batches
        num_batches = default + sum((own.batches or default) * every / (own.every or every) for own in sets)
        per_validation = VALIDATION_SHARE * num_batches * pace
        if self.num_validations:
            per_validation = validation / self.num_validations
        per_save = checkpoint / max(1, self.num_saves)
        return (
            pace * (train.steps - step)
            + per_validation * _num_times(step, train.steps, train.validate_every)
            + per_save * self._num_saves(step)
        )

    def _num_saves(self, step: int) -> float:
        """Return the number of checkpoints from `step` to the last: by time, as many per step as so far."""
        every, last = self.config.checkpoint.every, self.config.train.steps
        if isinstance(every, int):
            return _num_times(step, last, every)
        return 1 + (last - step) * self.num_saves / max(1, step - self.first_step)


def _num_times(step: int, last: int, every: int | None) -> int:
    """Return the number of multiples of `every` from `step` to `last`, counting the last step itself as one."""
    if every is None:
        return 1
    return last // every - (step - 1) // every + (last % every > 0)
