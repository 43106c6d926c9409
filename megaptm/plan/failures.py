"""What failures of nodes cost, and checkpoints against them."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from megaptm.plan.machine import Machine
from megaptm.plan.saving import Saving

DAY = 86400.0


@dataclass(frozen=True)
class Failures:
    """What saving and failing cost, to first order in interval / time between failures (Young, 1974)."""

    restart_seconds: float
    """Of a job that goes on, before its first step: what the machine needs, and reading the checkpoint."""
    mtbf_hours: float
    """Between two failures of the job: that of a node over the number of nodes."""
    expected: float
    """Failures in the whole run."""
    best_interval_steps: int
    """Steps between two checkpoints that lose least: sqrt(2 x time lost to one x time between failures)."""
    goodput: float
    """Share of time that makes steps, at the config's `checkpoint.every`."""
    best_goodput: float


def failures(
    machine: Machine, saving: Saving, *, nodes: int, step_seconds: float, seconds: float, every: int
) -> Failures:
    """What a run of so many `seconds` of steps pays for checkpoints, and for the work that a failed node takes."""
    between = machine.node_mtbf_days * DAY / nodes
    writing = saving.seconds - saving.stall  # beside steps, which a failure takes too
    restart = machine.restart_minutes * 60 + saving.seconds  # reading takes what writing took

    def goodput(interval: float) -> float:
        stall = saving.stall_at(interval)
        lost = (interval / 2 + writing + restart) / between
        return max(0.0, interval / (interval + stall) * (1 - min(1.0, lost)))

    best = min(max(sqrt(2 * saving.stall * between), writing, step_seconds), seconds)
    at_config = max(goodput(min(every * step_seconds, seconds)), 1e-9)
    return Failures(
        restart_seconds=restart,
        mtbf_hours=between / 3600,
        expected=seconds / at_config / between,
        best_interval_steps=max(1, round(best / step_seconds)),
        goodput=at_config,
        best_goodput=goodput(best),
    )
