"""Asking Slurm's commands."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from megaptm.errors import UserError

ANSWER_SECONDS = 30.0


@dataclass(frozen=True)
class Answer:
    """What a command of Slurm says."""

    stdout: str
    refusal: str = ""
    """Why it did not do what it was asked: the reason that it gives, that it is absent, or that it does not end."""
    ended: bool = True
    """Of itself. The reason is Slurm's own then."""


def answer(*command: str, script: str | None = None, environment: Mapping[str, str] = os.environ) -> Answer:
    """That of a command of Slurm, in bounded time; `script` is what it reads."""
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
    except subprocess.TimeoutExpired:
        return Answer("", f"nothing in {ANSWER_SECONDS:.0f} s", ended=False)
    except OSError as error:
        return Answer("", error.strerror or str(error), ended=False)
    if not done.returncode:
        return Answer(done.stdout)
    said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return Answer(done.stdout, re.sub(r"^(\w+: )?(error: |fatal: |allocation failure: )+", "", said))


def ask(*command: str, script: str | None = None, environment: Mapping[str, str] = os.environ) -> list[str]:
    """The lines that a command of Slurm prints; a `UserError` with its reason where it refuses or does not answer."""
    given = answer(*command, script=script, environment=environment)
    if not given.refusal:
        return [line for line in given.stdout.splitlines() if line]
    if command[0] == "sbatch" and given.ended:
        raise UserError(f"Slurm refuses the job ({given.refusal}): change the request, `sinfo` shows what there is.")
    raise UserError(
        f"Slurm does not answer ({command[0]}: {given.refusal}): see that slurmctld runs, and that SLURM_CONF is right."
    )
