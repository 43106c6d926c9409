"""A run that was submitted to Slurm: the config that a job carries, and the jobs that are not over."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from megaptm.config import Config, dump
from megaptm.errors import UserError
from megaptm.schedulers.slurm.command import ask
from megaptm.storage import write_whole

SCRIPT = "job.sh"
"""In the run folder: what was submitted; by its path the run's jobs are known."""
FOLDER = "submitted"
"""In the run folder: the config of each submission, named by its content, which no later command writes over."""


def submitted_config(config: Config) -> Path:
    """The file with the config that a job carries."""
    return Path(config.run) / FOLDER / f"{_digest(dump(config).encode())}.yaml"


def write_submission(config: Config, script: str) -> None:
    """Put the config and the script of a submission into the run folder."""
    path = submitted_config(config)
    path.parent.mkdir(exist_ok=True)
    write_whole(path, dump(config).encode())
    write_whole(path.parents[1] / SCRIPT, script.encode())


def check_submitted(path: Path) -> None:
    """Raise where the config that a job carries is not the one that it was submitted with."""
    if path.parent.name == FOLDER and path.is_file() and _digest(path.read_bytes()) != path.stem:
        raise UserError(
            f"{path} is not the config that this job was submitted with: somebody changed it; submit the run again."
        )


def refuse_queued(run: Path) -> None:
    """Raise while a job of a run that was submitted waits or runs, unless this process belongs to one: it carries
    another config."""
    jobs = queued(run)
    if not jobs or os.environ.get("SLURM_JOB_ID") in jobs:
        return
    named = ", ".join(f"{job} ({state})" for job, state in jobs.items())
    raise UserError(
        f"run {run} is in Slurm's queue as job {named}, with the config that it was submitted with: let it run, "
        f"withdraw it first (scancel {' '.join(jobs)}), or choose another run=FOLDER."
    )


def queued(run: Path) -> dict[str, str]:
    """Job -> PENDING, RUNNING ..., of those that were submitted by the run's script and are not over.

    Empty where Slurm does not answer: what a job trains it carries along, whatever happens meanwhile.
    """
    script = run / SCRIPT
    try:
        lines = ask("squeue", "--noheader", "--format=%A|%T|%o")
    except UserError:
        return {}
    rows = [line.split("|", 2) for line in lines if line.count("|") >= 2]
    return {job: state for job, state, words in rows if words == str(script) or words.startswith(f"{script} ")}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
