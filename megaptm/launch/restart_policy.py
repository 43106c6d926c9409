"""Rule for automatic restarts of an unfinished run: on one machine, on Slurm and on Ray."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from megaptm.resilience.events import (
    START_KINDS,
    HangEvent,
    NodeLostEvent,
    WorkerLostEvent,
    hung_twice_without_saving,
    last_saved_step,
    read_events,
)
from megaptm.storage import now

Ending = Literal["node-lost", "interrupted", "hung", "failed", "rolled-back"]
"""Reason why a start of a run ended: a node was lost; the scheduler ended it, or it saved itself to continue; a rank
hung; a rank failed; it returned to a checkpoint because of a spike."""
PAUSES = (0.0, 10.0, 60.0)
"""Seconds before the restarts after failures in a row, without a new checkpoint between; the last is repeated."""
MAX_FAULTS = 2
"""Number of crashes, hangs and losses of a node, within `train.node_fault_hours`, after which it is excluded."""


@dataclass
class RestartPolicy:
    """Restart policy of one run while it is supervised."""

    run: Path
    restarts: int | None = None
    """Maximum number of restarts after hangs and failures without a new checkpoint between (`train.restarts`); None:
    any number."""
    used: int = 0
    """Number of such restarts since the newest checkpoint."""
    pause: float = 0.0
    """Seconds to wait before the restart that was allowed last."""
    _counted: bool = False
    """Whether that restart was counted."""
    _saved: int = field(init=False)
    """Step of the newest checkpoint at the restart that was counted last."""

    def __post_init__(self) -> None:
        self._saved = last_saved_step(self.run)

    def may_restart(self, ending: Ending, *, progress: bool = True) -> bool:
        """Whether the run may be restarted; counts the restart. `progress`: whether an interrupted job saved a
        checkpoint.

        A lost node always allows a restart, and so does a spike, since a run limits its returns itself. A run that ends
        again and again at the same step would end there forever; one that saves checkpoints between goes on for weeks.
        """
        self.pause, self._counted = 0.0, False
        if ending in ("node-lost", "rolled-back"):
            return True
        if ending == "interrupted":
            return progress
        if (saved := last_saved_step(self.run)) > self._saved:
            self.used = 0
        self._saved = saved
        if self.restarts is not None and self.used >= self.restarts:
            return False
        if ending == "hung" and hung_twice_without_saving(self.run):
            return False
        if ending == "failed":
            self.pause = PAUSES[min(self.used, len(PAUSES) - 1)]
        self.used += 1
        self._counted = True
        return True

    def describe_restart(self) -> str:
        """Return the message about an allowed restart."""
        saved = last_saved_step(self.run)
        step = f"the checkpoint of step {saved:,}" if saved else "the beginning"
        when = f" in {self.pause:.0f} s" if self.pause else ""
        number = f" (restart {self.used} of {self.restarts} without a new checkpoint)" if self._counted else ""
        return f"Starting all ranks again{when} from {step}{number}."


@dataclass
class SickNodes:
    """Nodes that are not used by the next starts of a run, because they failed repeatedly. Ray's supervisor and the
    jobs of Slurm use it."""

    run: Path
    hours: float
    """Hours for which a fault counts (`train.node_fault_hours`)."""
    excluded: list[str] = field(default_factory=list)
    """Names of the excluded nodes."""
    _released: dict[str, int] = field(default_factory=dict)
    """Number of faults that each node had at the last release."""

    def find(self) -> list[str]:
        """Return the nodes to exclude: those with at least `MAX_FAULTS` faults that count, one of them after the last
        release."""
        oldest = now() - 3600 * self.hours
        return [
            node
            for node, times in sorted(node_faults(self.run).items())
            if node not in self.excluded
            and len(times) > self._released.get(node, 0)
            and sum(time > oldest for time in times) >= MAX_FAULTS
        ]

    def exclude(self) -> list[str]:
        """Exclude the nodes that `find` returns; return them."""
        new = self.find()
        self.excluded += new
        return new

    def release(self) -> list[str]:
        """Release the excluded nodes, because the others are too few, or all may be repaired; return them. Each node is
        excluded only after a new fault."""
        nodes, self.excluded = self.excluded, []
        self._released = {node: len(times) for node, times in node_faults(self.run).items()}
        return nodes


def node_faults(run: Path) -> dict[str, list[float]]:
    """Return for each node the times of the starts in which it was lost, or ranks on it crashed or hung."""
    start, faults = 0, dict[str, dict[int, float]]()
    for event in read_events(run):
        start += event["kind"] in START_KINDS
        is_fault = event["kind"] in (HangEvent.kind, NodeLostEvent.kind, WorkerLostEvent.kind)
        if is_fault and isinstance(node := event.get("node"), str) and node:
            faults.setdefault(node, {})[start] = event["time"]
    return {node: [*times.values()] for node, times in faults.items()}
