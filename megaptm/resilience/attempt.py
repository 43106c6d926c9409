"""Which start of a run came later, as a scheduler or launcher says: it fences off one that was lost sight of."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter

from megaptm.errors import UserError, integer_of, shown

VARIABLE = "MEGAPTM_ATTEMPT"
"""By which a launcher tells the processes that it starts, on whatever machine, which start they are."""


@dataclass(frozen=True)
class Attempt:
    """One start of one job. The next one of a chain is started only when this one is taken for ended."""

    chain: str
    """The same in all jobs that were submitted to follow each other; a job by itself is a chain."""
    job: int
    restart: int
    start: int = 0
    """Counted by a launcher that starts a run several times within a job."""

    @classmethod
    def here(cls, environ: Mapping[str, str] = os.environ) -> Attempt | None:
        """That of this process: as its launcher says, or Slurm; None where neither does."""
        if told := environ.get(VARIABLE):
            try:
                attempt = cls.from_json(json.loads(told))
            except (ValueError, RecursionError):
                attempt = None
            if attempt is None:
                raise UserError(f"{VARIABLE} ({shown(told)}) is not what a launcher sets: unset it.")
            return attempt
        job = environ.get("SLURM_JOB_ID")
        if job is None:
            return None
        return cls(
            environ.get("MEGAPTM_CHAIN") or job,
            integer_of(environ, "SLURM_JOB_ID"),
            integer_of(environ, "SLURM_RESTART_COUNT"),
        )

    @classmethod
    def from_json(cls, found: Any) -> Attempt | None:
        """What a file has of it; None where that is something else, whoever wrote it."""
        try:
            return _adapter().validate_json(json.dumps(found), strict=True)
        except (ValueError, RecursionError):
            return None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def next_start(self) -> Attempt:
        """Of the same launcher."""
        return replace(self, start=self.start + 1)

    def environment(self) -> dict[str, str]:
        """What makes it the attempt `here` in another process."""
        return {VARIABLE: json.dumps(self.to_json())}

    def follows(self, other: Attempt | None) -> bool:
        """Whether the other one is over, whatever of it may still run on a node that nobody can reach."""
        return other is not None and self.chain == other.chain and self._order > other._order

    @property
    def _order(self) -> tuple[int, int, int]:
        return self.job, self.restart, self.start


@lru_cache(maxsize=1)
def _adapter() -> TypeAdapter[Attempt]:
    return TypeAdapter(Attempt)
