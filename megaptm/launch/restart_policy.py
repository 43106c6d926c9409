"""Rule for automatic restarts of an unfinished run: on one machine, on Slurm and on Ray."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from megaptm.resilience.events import (
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


def sick_nodes(run: Path) -> list[str]:
    """Return the nodes that were lost, or where ranks crashed or hung, at least twice since the command that started
    the run."""
    faults: Counter[str] = Counter()
    for event in reversed(read_events(run)):
        if event["kind"] == LaunchEvent.kind:
            break
        if event["kind"] in (HangEvent.kind, NodeLostEvent.kind, WorkerLostEvent.kind) and event.get("node"):
            faults[event["node"]] += 1
    return sorted(node for node, number in faults.items() if number >= MAX_FAULTS)
