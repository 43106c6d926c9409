"""Rule for automatic restarts of an unfinished run: on one machine, on Slurm and on Ray."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from megaptm.resilience.events import (
    START_KINDS,
    HangEvent,
    LaunchEvent,
    NodeLostEvent,
    WorkerLostEvent,
    failures_since_saved,
    hung_twice_without_saving,
    last_saved_step,
    read_events,
)

Ending = Literal["node-lost", "interrupted", "hung", "failed", "rolled-back"]
"""Reason why a start of a run ended: a node was lost; the scheduler ended it, or it saved itself to continue; a rank
hung; a rank failed; it returned to a checkpoint because of a spike."""
PAUSES = (0.0, 10.0)
"""Seconds before the restart after the first and the second failure without a new checkpoint. The third ends the
run."""
MAX_FAULTS = 2
"""Number of crashes, hangs and losses of a node after which it is excluded."""


@dataclass
class RestartPolicy:
    """Restart policy of one run while it is supervised."""

    run: Path
    retries: int | None = None
    """Remaining restarts after hangs and failures; None: any number."""
    pause: float = 0.0
    """Seconds to wait before the restart that was allowed last."""
    counts: bool = False
    """Whether that restart was counted."""

    def may_restart(self, ending: Ending, *, progress: bool = True) -> bool:
        """Whether the run may be restarted; counts the restart. `progress`: whether an interrupted job saved a
        checkpoint.

        A lost node always allows a restart, and so does a spike, since a run limits its returns itself. A run that ends
        again and again at the same step would end there forever.
        """
        self.pause, self.counts = 0.0, False
        if ending in ("node-lost", "rolled-back"):
            return True
        if ending == "interrupted":
            return progress
        if self.retries == 0 or (ending == "hung" and hung_twice_without_saving(self.run)):
            return False
        if ending == "failed":
            # A kill is no fault of the step at which it happened: some starts without a new checkpoint are allowed.
            if (failures := failures_since_saved(self.run)) > len(PAUSES):
                return False
            self.pause = PAUSES[max(0, failures - 1)]
        if self.retries is not None:
            self.retries, self.counts = self.retries - 1, True
        return True

    def describe_restart(self) -> str:
        """Return the message about an allowed restart."""
        saved = last_saved_step(self.run)
        step = f"the checkpoint of step {saved:,}" if saved else "the beginning"
        when = f" in {self.pause:.0f} s" if self.pause else ""
        left = f" (restarts left: {self.retries})" if self.counts else ""
        return f"Starting all ranks again{when} from {step}{left}."


@dataclass
class SickNodes:
    """Nodes that are not used by the next starts of a run, because they failed repeatedly."""

    run: Path
    excluded: list[str] = field(default_factory=list)
    """Addresses of the excluded nodes."""
    released: dict[str, int] = field(default_factory=dict)
    """Number of faults that a node had when it was released."""

    def exclude(self) -> list[str]:
        """Exclude the nodes with at least `MAX_FAULTS` faults, released ones only after a new fault; return the newly
        excluded ones."""
        new = [
            node
            for node, number in sorted(node_faults(self.run).items())
            if number >= max(MAX_FAULTS, self.released.get(node, 0) + 1) and node not in self.excluded
        ]
        self.excluded += new
        return new

    def release(self) -> list[str]:
        """Release the excluded nodes, because the others are too few; return them."""
        nodes, self.excluded = self.excluded, []
        faults = node_faults(self.run)
        self.released |= {node: faults[node] for node in nodes}
        return nodes


def node_faults(run: Path) -> Counter[str]:
    """Return for each node the number of starts in which it was lost, or ranks on it crashed or hung. Starts before the
    command that started the run do not count."""
    start, faults = 0, set[tuple[int, str]]()
    for event in read_events(run):
        start += event["kind"] in START_KINDS
        if event["kind"] == LaunchEvent.kind:
            faults.clear()
        elif event["kind"] in (HangEvent.kind, NodeLostEvent.kind, WorkerLostEvent.kind) and event.get("node"):
            faults.add((start, event["node"]))
    return Counter(node for _, node in faults)
