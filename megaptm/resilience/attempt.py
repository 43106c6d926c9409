"""Which start of a run came later, in the scheduler's word: the number that fences off a start it has lost sight of."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Attempt:
    """One start of one job. Slurm starts the next one of a chain only when it takes this one for ended."""

    chain: str
    """The same in all jobs that were submitted to follow each other; a job by itself is a chain."""
    job: int
    restart: int

    @classmethod
    def here(cls, environ: Mapping[str, str] = os.environ) -> Attempt | None:
        """That of this process; None outside of Slurm."""
        job = environ.get("SLURM_JOB_ID")
        if job is None:
            return None
        return cls(environ.get("MEGAPTM_CHAIN") or job, int(job), int(environ.get("SLURM_RESTART_COUNT") or 0))

    @classmethod
    def from_json(cls, found: Any) -> Attempt | None:
        return cls(**found) if isinstance(found, dict) else None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def follows(self, other: Attempt | None) -> bool:
        """Whether the other one is over, whatever of it may still run on a node that Slurm cannot reach."""
        return other is not None and self.chain == other.chain and (self.job, self.restart) > (other.job, other.restart)
