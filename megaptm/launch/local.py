"""Starts the processes of a run on this machine, watches them, and ends all when one fails. Imports no torch."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from megaptm.launch.worker_group import LocalWorkerGroup, Rendezvous, environments, forwarding, listen
from megaptm.resilience.failures import exit_code, exit_code_of_hang, exit_code_of_interrupt, failures
from megaptm.resilience.heartbeat import HEARTBEATS, VARIABLE
from megaptm.resilience.watchdog import Limits, Watchdog


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
    listener = listen()
    rendezvous = Rendezvous(processes, "127.0.0.1", listener.getsockname()[1])
    # On a terminal rank 0 draws a progress bar: it has the terminal itself. A pipe is also logged.
    out = None if sys.stdout.isatty() else _binary(sys.stdout, sys.__stdout__)
    workers = LocalWorkerGroup(command, logs=logs, out=out, err=_binary(sys.stderr, sys.__stderr__))
    beats = logs / HEARTBEATS / secrets.token_hex(4)
    watchdog = Watchdog(beats, range(processes), limits=Limits(hang_seconds=hang_seconds, patience=patience)).clear()
    given = {**(environment or {}), VARIABLE: str(watchdog.folder)}
    with forwarding(workers.forward):
        try:
            workers.start(environments(range(processes), rendezvous, given, threads=threads), listener)
            if hang := workers.wait(watchdog):
                return exit_code_of_hang(hang, run=run)
            workers.end_all(grace_seconds)
        except KeyboardInterrupt:
            return exit_code_of_interrupt(run=run)
        finally:
            workers.kill_all()
    if not failures(workers.ends):
        workers.release()
    return exit_code(workers.ends, run=run, logs=logs, forwarded=workers.forwarded)


def _binary(stream: Any, original: Any) -> IO[bytes]:
    """What takes a stream's bytes; that of the process itself where another, as a notebook's, takes only text."""
    return stream.buffer if hasattr(stream, "buffer") else original.buffer
