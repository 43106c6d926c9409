"""When a run that ended before its last step is started again by itself: one rule for Slurm and for Ray."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from megaptm.resilience.events import hung_again

Ending = Literal["node-lost", "interrupted", "hung", "failed"]
"""How a start ended: a node was lost; the scheduler ended it, or it is saved to go on; a rank hung, or failed."""


@dataclass
class RestartPolicy:
    """Of one run, for as long as somebody watches it."""

    run: Path
    retries: int | None = None
    """Starts that are left after hangs and failures; absent: any number."""

    def goes_on(self, ending: Ending, *, progress: bool = True) -> bool:
        """Whether to start it once more; counts the start. `progress`: something was saved since it began.

        A lost node is nobody's fault. What ends twice at one place would end there for ever.
        """
        if ending == "node-lost":
            return True
        if ending == "interrupted":
            return progress
        if self.retries == 0 or (hung_again(self.run) if ending == "hung" else not progress):
            return False
        if self.retries is not None:
            self.retries -= 1
        return True
