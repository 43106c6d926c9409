"""Rule for automatic restarts of an unfinished run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from megaptm.resilience.events import hung_twice_without_saving

Ending = Literal["node-lost", "interrupted", "hung", "failed"]
"""Reason why a start of a run ended: a node was lost; the scheduler ended it, or it saved itself to continue; a rank
hung; a rank failed."""


@dataclass
class RestartPolicy:
    """Restart policy of one run while it is supervised."""

    run: Path
    retries: int | None = None
    """Remaining restarts after hangs and failures; None: any number."""

    def may_restart(self, ending: Ending, *, progress: bool = True) -> bool:
        """Whether the run may be restarted; counts the restart. `progress`: whether a checkpoint was saved since the
        last start.

        A lost node always allows a restart. A run that ends twice at the same step would end there forever.
        """
        if ending == "node-lost":
            return True
        if ending == "interrupted":
            return progress
        if self.retries == 0 or (hung_twice_without_saving(self.run) if ending == "hung" else not progress):
            return False
        if self.retries is not None:
            self.retries -= 1
        return True
