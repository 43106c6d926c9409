"""Submitting jobs, one after the other, and following what they say."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import megaptm
from megaptm.check.slurm import ask
from megaptm.errors import UserError

POLL_SECONDS = 1.0


def check_slurm(home: Path, script: str) -> None:
    """A `UserError` where no job can be submitted from, or what Slurm would say against this one."""
    if shutil.which("sbatch") is None:
        raise UserError(
            "sbatch is not on this machine: log in where jobs are submitted, or see the script by --dry-run."
        )
    if not (home / "slurm/common.sh").is_file():
        raise UserError(f"{home} has no slurm/common.sh: set MEGAPTM_HOME to the checkout of megaptm.")
    ask("sbatch", "--test-only", script=script)


def home(environ: Mapping[str, str] = os.environ) -> Path:
    """The checkout, which all nodes must see."""
    return Path(environ.get("MEGAPTM_HOME") or Path(megaptm.__file__).parents[1])


def submit(script: Path, *, jobs: int, chain: str) -> list[str]:
    """Submit the script so many times, each to begin when the one before has ended; the jobs' numbers.

    `chain` is a word that jobs have in common that follow each other.
    """
    environment = {"MEGAPTM_VENV": sys.prefix, **os.environ, "MEGAPTM_HOME": str(home())}
    environment["MEGAPTM_CHAIN"] = chain
    numbers: list[str] = []
    for _ in range(jobs):
        after = [f"--dependency=afterany:{numbers[-1]}"] if numbers else []
        [said] = ask("sbatch", "--parsable", *after, str(script), environment=environment)
        numbers.append(said.partition(";")[0])
    return numbers


def follow(job: str, log: Path, show: Callable[[str], object]) -> None:
    """Show what is added to a job's log until the job is over."""
    at = 0
    while True:
        waiting = state(job)
        if log.exists():
            with log.open("rb") as file:
                file.seek(at)
                if added := file.read():
                    show(added.decode(errors="replace"))
                at = file.tell()
        if not waiting:
            return
        time.sleep(POLL_SECONDS)


def state(job: str) -> str:
    """PENDING, RUNNING ...; empty when the job is over."""
    done = subprocess.run(
        ["squeue", "--noheader", f"--jobs={job}", "--format=%T"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def describe(job: str) -> dict[str, str]:
    """What Slurm knows of a job: JobState, ExitCode ...; nothing when it is long over."""
    command = ["scontrol", "show", "job", job, "--oneliner"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return dict(word.partition("=")[::2] for word in done.stdout.split() if "=" in word)
