"""`python -m megaptm.launch.slurm.failure_report LOGS`: root cause of a failed job."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click

from megaptm.errors import EXIT_CONTINUE, EXIT_FAILURE, printable
from megaptm.launch.restart_policy import Ending, RestartPolicy
from megaptm.resilience.events import (
    START_KINDS,
    CheckpointEvent,
    Events,
    HangEvent,
    LaunchEvent,
    RestartEvent,
    WorkerLostEvent,
    has_rolled_back,
    is_newest,
)
from megaptm.resilience.failures import ProcessExit, describe_failure, root_cause

ENDED = re.compile(r"^srun: error: (\S+): tasks? ([\d,-]+): (?:Exited with exit code (\d+)|(.+))$", re.MULTILINE)
EXIT_HUNG_AGAIN = 70
"""Exit code if the run hung at the same step as before: a requeued job would hang there forever."""
EXIT_UNSAVED = 71
"""Exit code if no rank failed, but the job saved nothing."""
EXIT_RESTART = 72
"""Exit code if all ranks may be started again within the job."""
# srun names signals as the C library does.
SIGNALS = {signal.strsignal(number): -number for number in signal.valid_signals()}
SIGNALS["Out Of Memory"] = -signal.SIGKILL


@click.command()
@click.option("--restarts", default=0, help="Number of times that a job may start the processes again.")
@click.option("--start", default=0, help="Number of earlier starts of the processes within the job.")
@click.option("--stopping", is_flag=True, help="The job was asked to save.")
@click.argument("logs", type=click.Path(path_type=Path))
def main(restarts: int, start: int, stopping: bool, logs: Path) -> None:
    """Print the rank that failed, its node, and its last message.

    Exit code 75: a rank hung, requeue the job; 72: start all ranks again within the job; 70: a rank hung again and
    nothing was saved between; 71: none failed, but this job saved nothing; 1: a rank failed.
    """
    sys.exit(report(logs, restarts=restarts, start=start, stopping=stopping))


def report(logs: Path, *, restarts: int = 0, start: int = 0, stopping: bool = False) -> int:
    """Print and record why a start of a Slurm job ended; return the exit code of `main`."""
    run = next(folder for folder in logs.parents if folder.name == "logs").parent
    policy = RestartPolicy(run, retries=0 if stopping else max(0, restarts - start))
    if has_hung(run):
        if may_restart(policy, "hung", start=start):
            return EXIT_RESTART
        if RestartPolicy(run).may_restart("hung"):
            return EXIT_CONTINUE
        click.echo(
            "The run hung twice without saving in between and is not restarted automatically; logs of the ranks: "
            f"{logs}."
        )
        return EXIT_HUNG_AGAIN
    failed = [(host, end) for host, end in failed_processes(logs) if end.code not in (0, EXIT_CONTINUE)]
    if stopping:  # before it handles signals, the warning kills a process
        failed = [(host, end) for host, end in failed if end.code != -signal.SIGUSR1]
    if not failed and not stopping and has_rolled_back(run) and may_restart(policy, "rolled-back", start=start):
        return EXIT_RESTART
    if not failed:
        return 0 if RestartPolicy(run).may_restart("interrupted", progress=has_saved(run)) else EXIT_UNSAVED
    cause = root_cause([end for _, end in failed])
    host = next(host for host, end in failed if end is cause)
    with Events(run) as events:
        events.write(WorkerLostEvent(rank=cause.rank, code=cause.code, problem=cause.problem, node=host))
    click.echo(f"On {host}, {printable(describe_failure(cause))}\nLogs of the ranks: {logs}.")
    return EXIT_RESTART if cause.is_fault_of_machine and may_restart(policy, "failed", start=start) else EXIT_FAILURE


def may_restart(policy: RestartPolicy, ending: Ending, *, start: int) -> bool:
    """Whether all ranks of a Slurm job may be started again within it. If so, print and record it, and wait."""
    if not policy.may_restart(ending):
        return False
    click.echo(policy.describe_restart())
    time.sleep(policy.pause)
    with Events(policy.run) as events:
        events.write(RestartEvent(start=start + 2))
    return True


def has_hung(run: Path) -> bool:
    """Whether the last start of the processes of a Slurm job ended because a rank hung.

    Its processes exit with code 75, except one that cannot: Slurm kills it and counts that as a failure.
    """
    return is_newest(run, HangEvent.kind, START_KINDS)


def has_saved(run: Path) -> bool:
    """Whether the last Slurm job of a run saved a checkpoint, at any start of its processes."""
    return is_newest(run, CheckpointEvent.kind, (LaunchEvent.kind,))


def failed_processes(logs: Path) -> Iterator[tuple[str, ProcessExit]]:
    """Yield node and exit of each failed process of a Slurm job, in order of time, from srun's log."""
    for host, ranks, code, killed in ENDED.findall((logs / "srun.log").read_text(errors="replace")):
        for rank in _expand_ranges(ranks):
            number = int(code) if code else SIGNALS.get(killed.removesuffix(" (core dumped)"), 1)
            yield host, ProcessExit(rank=rank, code=number, log=logs / f"rank-{rank}.log", log_start=0)


def _expand_ranges(ranges: str) -> Iterator[int]:
    """Expand ranges of task ids in Slurm's messages: yield 0, 1, 2, 5 for `0-2,5`."""
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


if __name__ == "__main__":
    main()
