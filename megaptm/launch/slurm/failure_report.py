"""`python -m megaptm.launch.slurm.failure_report LOGS`: whose fault it was that a job failed."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from megaptm.errors import EXIT_CONTINUE, printable
from megaptm.launch.restart_policy import RestartPolicy
from megaptm.resilience.events import BEGINNINGS, CheckpointEvent, HangEvent, read_events
from megaptm.resilience.failures import ProcessExit, failure_report, root_cause

ENDED = re.compile(r"^srun: error: (\S+): tasks? ([\d,-]+): (?:Exited with exit code (\d+)|(.+))$", re.MULTILINE)
EXIT_IN_VAIN = 70
"""It hung where it had hung before: the job that goes back to the queue would hang there for ever."""
EXIT_UNSAVED = 71
"""Nobody failed, and it saved nothing since it began."""
# srun says how a process was killed in the C library's words.
SIGNALS = {signal.strsignal(number): -number for number in signal.valid_signals()}


@click.command()
@click.argument("logs", type=click.Path(path_type=Path))
def main(logs: Path) -> None:
    """Say which rank failed, on which node, and what it said last.

    Exit code 75: one hung, go on from what is saved; 70: one hung, again, and nothing was saved between; 71: none
    failed, but this start saved nothing.
    """
    run = logs.parents[1]
    if hung(run):
        if RestartPolicy(run).goes_on("hung"):
            sys.exit(EXIT_CONTINUE)
        click.echo(
            f"It hung twice and saved nothing between: it does not go on by itself; each rank's log is in {logs}."
        )
        sys.exit(EXIT_IN_VAIN)
    failed = [(host, end) for host, end in ends(logs) if end.code not in (0, EXIT_CONTINUE)]
    if not failed:
        sys.exit(0 if RestartPolicy(run).goes_on("interrupted", progress=saved(run)) else EXIT_UNSAVED)
    cause = root_cause([end for _, end in failed])
    host = next(host for host, end in failed if end is cause)
    click.echo(f"On {host}, {printable(failure_report(cause))}\nWhat each rank wrote is in {logs}.")


def hung(run: Path) -> bool:
    """Whether the last start was ended because a rank hung.

    Its processes leave with code 75, but for one that cannot: Slurm kills it, and counts that.
    """
    return _since_last_start(run, HangEvent.kind)


def saved(run: Path) -> bool:
    """Whether the last start saved anything."""
    return _since_last_start(run, CheckpointEvent.kind)


def _since_last_start(run: Path, kind: str) -> bool:
    """Whether the last start wrote down such an event."""
    kinds = [event["kind"] for event in read_events(run) if event["kind"] in (*BEGINNINGS, kind)]
    return kinds[-1:] == [kind]


def ends(logs: Path) -> Iterator[tuple[str, ProcessExit]]:
    """How each process ended that did not end well, with its node, in order of time, from what srun said."""
    for host, ranks, code, killed in ENDED.findall((logs / "srun.log").read_text(errors="replace")):
        for rank in _numbers(ranks):
            number = int(code) if code else SIGNALS.get(killed.removesuffix(" (core dumped)"), 1)
            yield host, ProcessExit(rank=rank, code=number, log=logs / f"rank-{rank}.log", begin=0)


def _numbers(ranges: str) -> Iterator[int]:
    """`0-2,5` -> 0, 1, 2, 5."""
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


if __name__ == "__main__":
    main()
