"""`python -m megaptm.launch.slurm.failure_report LOGS`: root cause of a failed job."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from megaptm.errors import EXIT_CONTINUE, printable
from megaptm.launch.restart_policy import RestartPolicy
from megaptm.resilience.events import START_KINDS, CheckpointEvent, HangEvent, read_events
from megaptm.resilience.failures import ProcessExit, describe_failure, root_cause

ENDED = re.compile(r"^srun: error: (\S+): tasks? ([\d,-]+): (?:Exited with exit code (\d+)|(.+))$", re.MULTILINE)
EXIT_HUNG_AGAIN = 70
"""Exit code if the run hung at the same step as before: a requeued job would hang there forever."""
EXIT_UNSAVED = 71
"""Exit code if no rank failed, but the start saved nothing."""
# srun names signals as the C library does.
SIGNALS = {signal.strsignal(number): -number for number in signal.valid_signals()}


@click.command()
@click.argument("logs", type=click.Path(path_type=Path))
def main(logs: Path) -> None:
    """Print the rank that failed, its node, and its last message.

    Exit code 75: a rank hung, continue from the checkpoint; 70: a rank hung again and nothing was saved between; 71:
    none failed, but this start saved nothing.
    """
    run = logs.parents[1]
    if has_hung(run):
        if RestartPolicy(run).may_restart("hung"):
            sys.exit(EXIT_CONTINUE)
        click.echo(
            "The run hung twice without saving in between and is not restarted automatically; logs of the ranks: "
            f"{logs}."
        )
        sys.exit(EXIT_HUNG_AGAIN)
    failed = [(host, end) for host, end in failed_processes(logs) if end.code not in (0, EXIT_CONTINUE)]
    if not failed:
        sys.exit(0 if RestartPolicy(run).may_restart("interrupted", progress=has_saved(run)) else EXIT_UNSAVED)
    cause = root_cause([end for _, end in failed])
    host = next(host for host, end in failed if end is cause)
    click.echo(f"On {host}, {printable(describe_failure(cause))}\nLogs of the ranks: {logs}.")


def has_hung(run: Path) -> bool:
    """Whether the last start of a Slurm job ended because a rank hung.

    Its processes exit with code 75, except one that cannot: Slurm kills it and counts that as a failure.
    """
    return _since_last_start(run, HangEvent.kind)


def has_saved(run: Path) -> bool:
    """Whether the last start of a Slurm job saved a checkpoint."""
    return _since_last_start(run, CheckpointEvent.kind)


def _since_last_start(run: Path, kind: str) -> bool:
    """Whether the last start of a Slurm job wrote such an event to the journal."""
    kinds = [event["kind"] for event in read_events(run) if event["kind"] in (*START_KINDS, kind)]
    return kinds[-1:] == [kind]


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
