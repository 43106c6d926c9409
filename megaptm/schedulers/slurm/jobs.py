"""Submitting jobs, one after the other, and following what they say."""

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
from megaptm.schedulers.slurm.command import answer, ask

POLL_SECONDS = 1.0
COULD_NOT_START = "launch failed requeued held"
"""Why Slurm holds a job that a node did not get going: nothing of it has run."""
STARTS = 5
"""Of a job that nodes do not get going."""


def check_slurm(script: str) -> None:
    """A `UserError` where no job can be submitted from, or what Slurm would say against this one."""
    if shutil.which("sbatch") is None:
        raise UserError(
            "sbatch is not on this machine: log in where jobs are submitted, or see the script by --dry-run."
        )
    ask("sbatch", "--test-only", script=script)


def submit(script: Path, *, jobs: int, environment: Mapping[str, str]) -> list[str]:
    """Submit the script so many times, each to begin when the one before has ended; the jobs' numbers."""
    numbers: list[str] = []
    for _ in range(jobs):
        after = [f"--dependency=afterany:{numbers[-1]}"] if numbers else []
        try:
            with _answer_awaited(script) as asked:
                said = ask("sbatch", "--parsable", *after, str(script), environment=environment)
        except UserError as error:
            if not numbers:
                raise
            raise _withdraw(numbers, str(error)) from None
        numbers.append(said[-1].partition(";")[0])
        if asked:
            raise _withdraw_all(numbers)
    return numbers


@contextmanager
def _answer_awaited(script: Path) -> Iterator[list[int]]:
    """Ctrl-C, which is added to what is yielded, waits for sbatch: without its answer nobody knows the job's number.

    A second one does not, and is a `UserError` that says how to find the job.
    """
    asked: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        os.write(2, b"\nCtrl-C: once sbatch has answered, the job is canceled. Ctrl-C again: leave at once.\n")

    before = signal.signal(signal.SIGINT, hold)
    try:
        yield asked
    except KeyboardInterrupt:
        raise UserError(
            f"left before sbatch had answered: the job of {script} may be in the queue all the same; look for it with "
            "squeue, under its job's name, and scancel its number."
        ) from None
    finally:
        signal.signal(signal.SIGINT, before)


def _withdraw(numbers: Sequence[str], why: str) -> UserError:
    """Cancel the jobs of a chain that goes no further."""
    told = f"{why.rstrip('.')}; it would have been job {len(numbers) + 1} of the chain"
    try:
        ask("scancel", *numbers)
    except UserError:
        return UserError(f"{told}, whose others wait in the queue: scancel {' '.join(numbers)}.")
    return UserError(f"{told}, whose others ({', '.join(numbers)}) are canceled.")


def _withdraw_all(numbers: Sequence[str]) -> UserError:
    """Cancel what was submitted before somebody changed their mind."""
    try:
        ask("scancel", *numbers)
    except UserError:
        return UserError(f"interrupted; job {', '.join(numbers)} waits in the queue: scancel {' '.join(numbers)}.")
    return UserError(f"interrupted; job {', '.join(numbers)} is canceled.")


def follow(job: str, log: Path, show: Callable[[str], object]) -> None:
    """Show what is added to a job's log until the job is over; a job that a node could not start is let go again.

    A `UserError` where no node can start it.
    """
    at, failures = 0, 0
    while True:
        waiting, reason = state(job)
        if log.exists():
            with log.open("rb") as file:
                file.seek(at)
                if added := file.read():
                    show(added.decode(errors="replace"))
                at = file.tell()
        if not waiting:
            return
        if reason == COULD_NOT_START:
            failures += 1
            if failures == STARTS:
                raise UserError(
                    f"Slurm could not start job {job} {STARTS} times and holds it: see slurmd's log on its nodes, then "
                    f"let it go by scontrol release {job}."
                )
            show(f"Slurm could not start job {job}, and held it: let go again.\n")
            ask("scontrol", "release", job)
        time.sleep(POLL_SECONDS)


def state(job: str) -> tuple[str, str]:
    """PENDING, RUNNING ..., and why it waits; empty when the job is over, UNKNOWN while Slurm does not answer."""
    given = answer("squeue", "--noheader", f"--jobs={job}", "--format=%T|%r")
    if given.refusal and "Invalid job id" not in given.refusal:
        return "UNKNOWN", ""
    now, _, reason = given.stdout.strip().partition("|")
    return now, reason


def describe(job: str) -> dict[str, str]:
    """What Slurm knows of a job: JobState, ExitCode ...; nothing when it is long over, or Slurm does not answer."""
    told = answer("scontrol", "show", "job", job, "--oneliner").stdout
    # The first of each name: after them come the user's words, which may have any form.
    return dict(reversed([word.partition("=")[::2] for word in told.split() if "=" in word]))
