"""`python -m megaptm.launch.slurm.failure_report LOGS`: root cause of a failed job."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click

from megaptm.errors import EXIT_CONTINUE, EXIT_FAILURE, printable
from megaptm.launch.restart_policy import MAX_FAULTS, Ending, RestartPolicy, SickNodes
from megaptm.resilience.events import (
    START_KINDS,
    CheckpointEvent,
    HangEvent,
    LaunchEvent,
    NodeExcludedEvent,
    RestartEvent,
    WorkerLostEvent,
    has_rolled_back,
    is_newest_event,
    record_events,
    restarts_since_saved,
)
from megaptm.resilience.failures import ProcessExit, describe_failure, root_cause
from megaptm.storage import write_atomically

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
@click.option("--restarts", default=0, help="Number of restarts in a row without a new checkpoint (`train.restarts`).")
@click.option("--start", default=0, help="Number of earlier starts of the processes within the job.")
@click.option("--stopping", is_flag=True, help="The job was asked to save.")
@click.option("--node-fault-hours", default=0.0, help="Hours for which a fault of a node counts.")
@click.option("--excluded", default="", help="Nodes that the job excludes already, separated by commas.")
@click.option("--removable", default=0, help="Number of further nodes without which the job can start.")
@click.option("--idle", default=0, help="Number of idle nodes that a requeued job would get.")
@click.argument("logs", type=click.Path(path_type=Path))
def main(
    restarts: int,
    start: int,
    stopping: bool,
    node_fault_hours: float,
    excluded: str,
    removable: int,
    idle: int,
    logs: Path,
) -> None:
    """Print the rank that failed, its node, and its last message. Write the nodes that the next start should exclude to
    LOGS/sick-nodes.

    Exit code 75: a rank hung, requeue the job; 72: start all ranks again within the job; 70: a rank hung again and
    nothing was saved between; 71: none failed, but this job saved nothing; 1: a rank failed.
    """
    run = next(folder for folder in logs.parents if folder.name == "logs").parent
    sick = SickNodes(run, node_fault_hours, excluded.split(","))
    policy = RestartPolicy(run, restarts=0 if stopping else restarts, used=restarts_since_saved(run))
    code = report_end(logs, policy, sick, start=start, stopping=stopping, idle=idle)
    if code != EXIT_RESTART:
        _exclude_nodes(sick, logs, removable=max(0, removable))
    sys.exit(code)


def report_end(logs: Path, policy: RestartPolicy, sick: SickNodes, *, start: int, stopping: bool, idle: int) -> int:
    """Print and record why a start of a Slurm job ended; return the exit code of `main`."""
    run = policy.run
    restart = partial(_restart_code, policy, sick, start=start, idle=idle)
    if _has_hung(run):
        if code := restart("hung"):
            return code
        if RestartPolicy(run).may_restart("hung"):
            return EXIT_CONTINUE
        click.echo(
            "The run hung twice without saving in between and is not restarted automatically; logs of the ranks: "
            f"{logs}."
        )
        return EXIT_HUNG_AGAIN
    failed = [(host, end) for host, end in _failed_processes(logs) if end.code not in (0, EXIT_CONTINUE)]
    if stopping:  # before it handles signals, the warning kills a process
        failed = [(host, end) for host, end in failed if end.code != -signal.SIGUSR1]
    if not failed and not stopping and has_rolled_back(run) and (code := restart("rolled-back")):
        return code
    if not failed:
        return 0 if RestartPolicy(run).may_restart("interrupted", progress=_has_saved(run)) else EXIT_UNSAVED
    cause = root_cause([end for _, end in failed])
    host = next(host for host, end in failed if end is cause)
    node = host if cause.is_fault_of_node else None
    record_events(run, WorkerLostEvent(rank=cause.rank, code=cause.code, problem=cause.problem, node=node))
    click.echo(f"On {host}, {printable(describe_failure(cause))}\nLogs of the ranks: {logs}.")
    return (restart("failed") if cause.is_fault_of_machine else None) or EXIT_FAILURE


def _restart_code(policy: RestartPolicy, sick: SickNodes, ending: Ending, *, start: int, idle: int) -> int | None:
    """Return the exit code that starts all ranks of a Slurm job again, or None if that is not allowed.

    If idle nodes can replace those that failed repeatedly, the job is requeued, once without a new checkpoint. Else it
    starts the ranks again in its allocation: record that, and wait.
    """
    if not policy.may_restart(ending):
        return None
    if 0 < len(sick.find()) <= idle and not is_newest_event(
        policy.run, NodeExcludedEvent.kind, (CheckpointEvent.kind,)
    ):
        click.echo("The job is requeued, because idle nodes can replace those that failed repeatedly.")
        return EXIT_CONTINUE
    click.echo(policy.describe_restart())
    time.sleep(policy.pause)
    record_events(policy.run, RestartEvent(start=start + 2))
    return EXIT_RESTART


def _exclude_nodes(sick: SickNodes, logs: Path, *, removable: int) -> None:
    """Write the nodes that failed repeatedly to `logs`/sick-nodes, at most `removable`; print and record them."""
    nodes = sick.find()
    with contextlib.suppress(OSError):  # a full disk must not change the exit code
        write_atomically(logs / "sick-nodes", "".join(f"{node}\n" for node in nodes[:removable]).encode())
        record_events(sick.run, *(NodeExcludedEvent(node=node) for node in nodes[:removable]))
    for number, node in enumerate(nodes):
        effect = "the next start of the job excludes it" if number < removable else "the job cannot start without it"
        click.echo(
            f"Ranks on {printable(node)} crashed or hung {MAX_FAULTS} times or more in {sick.hours:g} hours: {effect}."
        )


def _has_hung(run: Path) -> bool:
    """Whether the last start of the processes of a Slurm job ended because a rank hung.

    Its processes exit with code 75, except one that cannot: Slurm kills it and counts that as a failure.
    """
    return is_newest_event(run, HangEvent.kind, START_KINDS)


def _has_saved(run: Path) -> bool:
    """Whether the last Slurm job of a run saved a checkpoint, at any start of its processes."""
    return is_newest_event(run, CheckpointEvent.kind, (LaunchEvent.kind,))


def _failed_processes(logs: Path) -> Iterator[tuple[str, ProcessExit]]:
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
