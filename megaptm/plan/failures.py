"""Estimated costs of node failures, and of checkpoints against them."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from megaptm.config import CheckpointConfig
from megaptm.plan.checkpoint_cost import CheckpointCost
from megaptm.plan.machine import Machine

DAY = 86400.0


@dataclass(frozen=True)
class FailureCosts:
    """Estimated costs of checkpoints and node failures, to first order in interval / time between failures (Young,
    1974)."""

    restart_seconds: float
    """Seconds before the first step of a resumed job: the machine's restart time, and reading the checkpoint."""
    mtbf_hours: float
    """Hours between two failures of the job: hours between two failures of a node, divided by the number of nodes."""
    expected: float
    """Number of node failures expected in the whole run."""
    every: int
    """Steps between checkpoints by the config's `checkpoint.every`."""
    best_interval_steps: int
    """Steps between checkpoints that cost the least time (`best_interval`)."""
    goodput: float
    """Share of a run's time spent in steps, with the config's `checkpoint.every`."""
    best_goodput: float


def estimate_failures(
    machine: Machine,
    saving: CheckpointCost,
    *,
    nodes: int,
    step_seconds: float,
    seconds: float,
    config: CheckpointConfig,
) -> FailureCosts:
    """Estimate the costs of checkpoints and node failures for a run whose steps take `seconds`."""
    between = machine.node_mtbf_days * DAY / nodes
    writing = saving.seconds - saving.stall  # during steps, which a failure loses too
    restart = machine.restart_minutes * 60 + saving.seconds  # reading takes as long as writing

    def goodput(interval: float) -> float:
        stall = saving.stall_at(interval)
        lost = (interval / 2 + writing + restart) / between
        return max(0.0, interval / (interval + stall) * (1 - min(1.0, lost)))

    best = min(max(best_interval(saving.stall, writing=writing, between=between), step_seconds), seconds)
    best_steps = max(1, round(best / step_seconds))
    interval = config.seconds
    if isinstance(config.every, int):
        every = config.every
    else:
        every = best_steps if interval is None else max(1, round(interval / step_seconds))
    at_config = max(goodput(min(every * step_seconds, seconds)), 1e-9)
    return FailureCosts(
        restart_seconds=restart,
        mtbf_hours=between / 3600,
        expected=seconds / at_config / between,
        every=every,
        best_interval_steps=best_steps,
        goodput=at_config,
        best_goodput=goodput(best),
    )


def best_interval(stall: float, *, writing: float, between: float) -> float:
    """Return the seconds between checkpoints that cost the least time: sqrt(2 x stall x time between failures), but no
    less than the time to write a checkpoint in the background (Young, 1974).

    `stall`: seconds that training waits for a checkpoint. `between`: mean seconds between two failures of the job.
    """
    return max(sqrt(2 * stall * between), writing)
