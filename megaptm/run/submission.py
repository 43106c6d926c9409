"""Submission of a run to Slurm: the config of a job, and the jobs in the queue."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from megaptm.config import Config, config_to_yaml
from megaptm.errors import UserError
from megaptm.schedulers.slurm.command import run_slurm
from megaptm.storage import write_atomically

SCRIPT = "job.sh"
"""Script in the run folder that was submitted. Its path identifies the jobs of the run."""
SUBMITTED = "submitted"
"""Folder in the run folder with the config of each Slurm submission. Files are named by content, so that none is
overwritten."""


def submitted_config(config: Config) -> Path:
    """Return the file with the config of a submitted job."""
    return Path(config.run) / SUBMITTED / f"{_content_digest(config_to_yaml(config).encode())}.yaml"


def write_submission(config: Config, script: str) -> None:
    """Write the config and the script of a submission to the run folder."""
    path = submitted_config(config)
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, config_to_yaml(config).encode())
    write_atomically(path.parents[1] / SCRIPT, script.encode())


def check_submitted(path: Path) -> None:
    """Raise `UserError` if the config of a submitted job was changed after its submission."""
    if path.parent.name == SUBMITTED and path.is_file() and _content_digest(path.read_bytes()) != path.stem:
        raise UserError(f"{path} was changed after this job was submitted with it: submit the run again.")


def refuse_queued_run(run: Path) -> None:
    """Raise `UserError` while a submitted job of the run is pending or running, since it has another config. A process
    of such a job is accepted."""
    jobs = queued_jobs(run)
    if not jobs or os.environ.get("SLURM_JOB_ID") in jobs:
        return
    job_names = ", ".join(f"{job} ({state})" for job, state in jobs.items())
    raise UserError(
        f"run {run} is already in Slurm's queue as job {job_names}, with the config of its submission: let it run, "
        f"cancel it first (scancel {' '.join(jobs)}), or choose another run=FOLDER."
    )


def queued_jobs(run: Path) -> dict[str, str]:
    """Return the states (PENDING, RUNNING ...) of the queued jobs with the run's script, by job id.

    Empty if Slurm does not respond. This is safe, because each job has its own copy of the config.
    """
    script = run / SCRIPT
    try:
        lines = run_slurm("squeue", "--noheader", "--format=%A|%T|%o")
    except UserError:
        return {}
    rows = [line.split("|", 2) for line in lines if line.count("|") >= 2]
    return {job: state for job, state, command in rows if command == str(script) or command.startswith(f"{script} ")}


def _content_digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
