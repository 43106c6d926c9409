"""Calls of Slurm's commands, in bounded time."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from megaptm.errors import UserError

ANSWER_SECONDS = 30.0


@dataclass(frozen=True)
class SlurmReply:
    """Result of a Slurm command."""

    stdout: str
    error: str = ""
    """Reason why the Slurm command failed; empty if it succeeded."""
    completed: bool = True
    """Whether the Slurm command ended by itself. If so, `error` is Slurm's own message."""


def try_slurm(*command: str, script: str | None = None, environment: Mapping[str, str] = os.environ) -> SlurmReply:
    """Run a Slurm command, with `script` as its input, and return its result, also if it fails."""
    try:
        done = subprocess.run(
            command,
            input=script,
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=ANSWER_SECONDS,
            check=False,
            # Ctrl-C must reach only this program, which decides what it means for a job that is being submitted.
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        return SlurmReply("", f"no answer in {ANSWER_SECONDS:.0f} s", completed=False)
    except OSError as error:
        return SlurmReply("", error.strerror or str(error), completed=False)
    if not done.returncode:
        return SlurmReply(done.stdout)
    message = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return SlurmReply(done.stdout, re.sub(r"^(\w+: )?(error: |fatal: |allocation failure: )+", "", message))


def run_slurm(*command: str, script: str | None = None, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Run a Slurm command and return the lines that it prints. Raise UserError if it fails or does not answer."""
    reply = try_slurm(*command, script=script, environment=environment)
    if not reply.error:
        return [line for line in reply.stdout.splitlines() if line]
    if command[0] == "sbatch" and reply.completed:
        raise UserError(f"Slurm rejects the job ({reply.error}): change the request; `sinfo` lists the partitions.")
    raise UserError(
        f"Slurm does not answer ({command[0]}: {reply.error}): check that slurmctld runs and that SLURM_CONF is "
        "correct."
    )
