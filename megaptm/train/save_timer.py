"""Times of the checkpoints of a run whose `checkpoint.every` is a time or auto. Rank 0 alone measures time."""

from __future__ import annotations

import time

from megaptm.config import CheckpointConfig
from megaptm.plan.failures import DAY, best_interval

FIRST_SECONDS = 60.0
"""Seconds of training before the first checkpoint of a job with `every: auto`, which measures its cost."""


class SaveTimer:
    """Time from one checkpoint to the next. With `auto` it is the interval of least cost, from the mean wait for a
    checkpoint so far."""

    def __init__(self, config: CheckpointConfig, nodes: int) -> None:
        self.config = config
        self.writing = 0.0
        """Seconds that the last checkpoint took until its commit, set by the thread that saves."""
        self._between = DAY / (config.failures_per_node_day * nodes)
        self._waits: list[float] = []
        self._last = time.monotonic()

    @property
    def interval(self) -> float | None:
        """Seconds between two checkpoints; None if the config has steps."""
        if self.config.every != "auto":
            return self.config.seconds
        if not self._waits:
            return FIRST_SECONDS
        mean = sum(self._waits) / len(self._waits)
        return best_interval(mean, writing=self.writing, between=self._between)

    def is_due(self) -> bool:
        interval = self.interval
        return interval is not None and time.monotonic() - self._last >= interval

    def add_save(self, waited: float | None) -> None:
        """Start the time to the next checkpoint. `waited`: seconds that training waited for this one; None if it was
        not saved, since a full disk fails at once."""
        if waited is not None:
            self._waits.append(waited)
        self._last = time.monotonic()
