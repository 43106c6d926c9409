"""Order of the starts of a run, so that a new start locks out an earlier one on an unreachable node. The scheduler or
launcher determines it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from pydantic import TypeAdapter

from megaptm.errors import UserError, quote_value, read_integer_variable

VARIABLE = "MEGAPTM_ATTEMPT"
"""Environment variable that tells a process which start of the run it belongs to, on any machine."""

START_VARIABLE = "MEGAPTM_START"
"""Environment variable with the number of earlier starts of the processes within a Slurm job."""


@dataclass(frozen=True)
class Attempt:
    """One start of one job of a run. The next start of a chain happens only when this one is considered ended."""

    chain: str
    """Identifier shared by all jobs of a run that are submitted to follow each other. A single job is a chain."""
    job: int
    restart: int
    start: int = 0
    """Number of earlier starts of the run by the same launcher within a job."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Attempt | None:
        """Return the attempt of this process, from its launcher or Slurm; None without either."""
        if value := environ.get(VARIABLE):
            try:
                attempt = cls.from_json(json.loads(value))
            except (ValueError, RecursionError):
                attempt = None
            if attempt is None:
                raise UserError(f"{VARIABLE} ({quote_value(value)}) is invalid, because no launcher set it: unset it.")
            return attempt
        job = environ.get("SLURM_JOB_ID")
        if job is None:
            return None
        return cls(
            environ.get("MEGAPTM_CHAIN") or job,
            read_integer_variable(environ, "SLURM_JOB_ID"),
            read_integer_variable(environ, "SLURM_RESTART_COUNT"),
            read_integer_variable(environ, START_VARIABLE),
        )

    @classmethod
    def from_json(cls, content: Any) -> Attempt | None:
        """Parse a run's attempt from untrusted JSON; None if it is invalid."""
        try:
            return ADAPTER.validate_json(json.dumps(content), strict=True)
        except (ValueError, RecursionError):
            return None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def next_start(self) -> Attempt:
        """Return the attempt for the next start of a run by the same launcher."""
        return replace(self, start=self.start + 1)

    def environment(self) -> dict[str, str]:
        """Return the environment variables from which `from_environment` reads this attempt in another process."""
        return {VARIABLE: json.dumps(self.to_json())}

    def follows(self, other: Attempt | None) -> bool:
        """Whether this attempt replaces `other`, even if processes of it still run on an unreachable node."""
        if other is None or self.chain != other.chain:
            return False
        return (self.job, self.restart, self.start) > (other.job, other.restart, other.start)


ADAPTER = TypeAdapter(Attempt)
