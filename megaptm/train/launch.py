"""Starts the processes of a run on this machine, watches them, and ends all when one fails. Imports no torch."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from megaptm.resilience.heartbeat import HEARTBEATS, VARIABLE
from megaptm.resilience.watchdog import Limits, Watchdog
from megaptm.train.crew import Crew, Meeting, environments, forwarding, free_port
from megaptm.train.verdict import failures, judge, judge_hang, judge_interrupt


def launch(
    command: Sequence[str],
    *,
    processes: int,
    run: Path,
    environment: Mapping[str, str] | None = None,
    threads: int | None = None,
    grace_seconds: float = 5.0,
    hang_seconds: float | None = None,
    patience: float = 0.0,
) -> int:
    """Run `command` once for each rank and return the exit code of the whole.

    Rank 0 writes to the terminal; each rank writes to `run/logs/rank-N.log`. When one fails, the others have
    `grace_seconds` to end by themselves, as many again after a SIGTERM, and are killed. A user's mistake in a worker
    (exit code 2) is raised here as `UserError`; 75 is returned when nobody failed and somebody asks to be continued,
    and when a rank hung: see `Watchdog`, also for `hang_seconds` and `patience`. 130 after Ctrl-C, twice.
    """
    logs = run / "logs"
    meeting = Meeting(processes, "127.0.0.1", free_port())
    # On a terminal rank 0 draws a progress bar: it has the terminal itself. A pipe is also logged.
    out = None if sys.stdout.isatty() else sys.stdout.buffer
    crew = Crew(command, logs=logs, out=out, err=sys.stderr.buffer)
    beats = logs / HEARTBEATS / secrets.token_hex(4)
    watchdog = Watchdog(beats, range(processes), limits=Limits(hang_seconds=hang_seconds, patience=patience)).clear()
    given = {**(environment or {}), VARIABLE: str(watchdog.folder)}
    with forwarding(crew.forward):
        try:
            crew.start(environments(range(processes), meeting, given, threads=threads))
            if hang := crew.wait(watchdog):
                return judge_hang(hang, run=run)
            crew.end_all(grace_seconds)
        except KeyboardInterrupt:
            return judge_interrupt(run=run)
        finally:
            crew.kill_all()
    if not failures(crew.ends):
        crew.release()
    return judge(crew.ends, run=run, logs=logs, forwarded=crew.forwarded)
