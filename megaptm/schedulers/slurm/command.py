"""Asking Slurm's commands."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping

from megaptm.errors import UserError

ANSWER_SECONDS = 30.0


def ask(*command: str, script: str | None = None, environment: Mapping[str, str] = os.environ) -> list[str]:
    """The lines that a command of Slurm prints; a `UserError` with its reason where it refuses or does not answer.

    `script` is what the command reads.
    """
    try:
        done = subprocess.run(
            command,
            input=script,
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=ANSWER_SECONDS,
            check=False,
            # Ctrl-C is for this program, which decides what it means for a job that is about to be submitted.
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired):
        raise UserError(_no_answer(command[0], f"nothing in {ANSWER_SECONDS:.0f} s")) from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        said = re.sub(r"^(\w+: )?(error: |fatal: |allocation failure: )+", "", said)
        if command[0] != "sbatch":
            raise UserError(_no_answer(command[0], said))
        raise UserError(f"Slurm refuses the job ({said}): change the request, `sinfo` shows what there is.")
    return [line for line in done.stdout.splitlines() if line]


def _no_answer(program: str, why: str) -> str:
    return f"Slurm does not answer ({program}: {why}): see that slurmctld runs, and that SLURM_CONF is right."
