"""Submission of jobs that follow each other, and their states and logs."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from megaptm.errors import UserError
from megaptm.schedulers.slurm.command import run_slurm, try_slurm

POLL_SECONDS = 1.0
COULD_NOT_START = "launch failed requeued held"
"""Slurm's reason for holding a job that a node could not start; no part of the job has run."""
MAX_STARTS = 5
"""Maximum number of times that a job is started which nodes cannot start."""


def check_submission(script: str) -> None:
    """Raise UserError if this machine cannot submit Slurm jobs, or if Slurm rejects this script."""
    if shutil.which("sbatch") is None:
        raise UserError(
            "sbatch is not installed on this machine: log in where jobs are submitted, or print the script with "
            "--dry-run."
        )
    run_slurm("sbatch", "--test-only", script=script)


def submit_slurm_jobs(script: Path, *, jobs: int, environment: Mapping[str, str]) -> list[str]:
    """Submit the script to Slurm `jobs` times, each job to start after the previous one has ended; return the job
    ids."""
    job_ids: list[str] = []
    for _ in range(jobs):
        after = [f"--dependency=afterany:{job_ids[-1]}"] if job_ids else []
        try:
            with _interrupts_deferred(script) as interrupts:
                lines = run_slurm("sbatch", "--parsable", *after, str(script), environment=environment)
        except UserError as error:
            if not job_ids:
                raise
            raise _cancel_chain(job_ids, str(error)) from None
        job_ids.append(lines[-1].partition(";")[0])
        if interrupts:
            raise _cancel_interrupted(job_ids)
    return job_ids


@contextmanager
def _interrupts_deferred(script: Path) -> Iterator[list[int]]:
    """Hold back the first Ctrl-C and add it to the yielded list: without sbatch's answer the job id is unknown.

    A second Ctrl-C raises UserError with how to find the job.
    """
    interrupts: list[int] = []

    def hold_interrupt(number: int, frame: FrameType | None) -> None:
        if interrupts:
            raise KeyboardInterrupt
        interrupts.append(number)
        os.write(2, b"\nCtrl-C: the job is canceled as soon as sbatch has answered. Ctrl-C again: exit at once.\n")

    before = signal.signal(signal.SIGINT, hold_interrupt)
    try:
        yield interrupts
    except KeyboardInterrupt:
        raise UserError(
            f"interrupted before sbatch answered: the job of {script} may be in the queue; look for its name with "
            "squeue, and scancel its id."
        ) from None
    finally:
        signal.signal(signal.SIGINT, before)


def _cancel_chain(job_ids: Sequence[str], reason: str) -> UserError:
    """Cancel the submitted Slurm jobs of a chain whose next job was rejected."""
    message = f"{reason.rstrip('.')}; this was job {len(job_ids) + 1} of the chain"
    try:
        run_slurm("scancel", *job_ids)
    except UserError:
        return UserError(f"{message}; the earlier jobs are still in the queue: scancel {' '.join(job_ids)}.")
    return UserError(f"{message}; the earlier jobs ({', '.join(job_ids)}) are canceled.")


def _cancel_interrupted(job_ids: Sequence[str]) -> UserError:
    """Cancel the submitted Slurm jobs after Ctrl-C."""
    try:
        run_slurm("scancel", *job_ids)
    except UserError:
        return UserError(f"interrupted; job {', '.join(job_ids)} is still in the queue: scancel {' '.join(job_ids)}.")
    return UserError(f"interrupted; job {', '.join(job_ids)} is canceled.")


def follow_slurm_job(job: str, log: Path, show: Callable[[str], object]) -> None:
    """Show new text of a Slurm job's log until the job has ended. Release a job that Slurm holds because it could not
    start.

    Raise UserError if no node can start the job.
    """
    at, failures = 0, 0
    while True:
        state, reason = job_state(job)
        if log.exists():
            with log.open("rb") as file:
                file.seek(at)
                if added := file.read():
                    show(added.decode(errors="replace"))
                at = file.tell()
        if not state:
            return
        if reason == COULD_NOT_START:
            failures += 1
            if failures == MAX_STARTS:
                raise UserError(
                    f"Slurm could not start job {job} {MAX_STARTS} times and holds it: see slurmd's log on its nodes, "
                    f"then release it with scontrol release {job}."
                )
            show(f"Slurm could not start job {job} and held it; released it.\n")
            run_slurm("scontrol", "release", job)
        time.sleep(POLL_SECONDS)


def job_state(job: str) -> tuple[str, str]:
    """Return the state of a Slurm job (PENDING, RUNNING ...) and the reason for waiting. The state is empty if the job
    has ended, and UNKNOWN if Slurm does not answer."""
    reply = try_slurm("squeue", "--noheader", f"--jobs={job}", "--format=%T|%r")
    if reply.error and "Invalid job id" not in reply.error:
        return "UNKNOWN", ""
    state, _, reason = reply.stdout.strip().partition("|")
    return state, reason


def slurm_job_fields(job: str) -> dict[str, str]:
    """Return Slurm's fields of a job (JobState, ExitCode ...); empty if it ended long ago or Slurm does not answer."""
    text = try_slurm("scontrol", "show", "job", job, "--oneliner").stdout
    # The first value of each name counts: the last fields hold text of the user, which may look like any field.
    return dict(reversed([word.partition("=")[::2] for word in text.split() if "=" in word]))
