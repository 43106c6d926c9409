"""Training on this machine: starts the processes, supervises them, and ends all when one fails. No torch.

If torchrun or srun started the processes, this is one of them.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from megaptm.config import Config
from megaptm.errors import EXIT_USER_ERROR, UserError, resource_errors_as_user_errors, storage_errors_as_user_errors
from megaptm.launch.worker_group import LocalWorkerGroup, Rendezvous, environments, forwarding, listen
from megaptm.python_path import module_command
from megaptm.report.terminal import title
from megaptm.resilience.failures import exit_code, exit_code_of_hang, exit_code_of_interrupt, failures
from megaptm.resilience.heartbeat import HEARTBEATS, VARIABLE
from megaptm.resilience.watchdog import Limits, Watchdog
from megaptm.run.corpora import check_corpora
from megaptm.run.folder import (
    discard_unused,
    environment_of,
    note_launch,
    only_start,
    prepare,
    read_config,
    wait_until_prepared,
)
from megaptm.run.rank import RankEnvironment, check_processes, worker_environment

SILENT_SECONDS = 20.0
"""Time for which other ranks leave an error that all ranks detect to rank 0, which may start that much later."""


def train(config: Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> int:
    """Train or continue the run of a config; return the exit code of the run, or of this rank."""
    place = worker_environment()
    try:
        wanted = read_config(config, overrides)
        if place is not None:
            check_processes(place, wanted.layout)
    except UserError:
        if place is not None and place.rank > 0:
            # All ranks detect the same error and rank 0 reports it; torchrun and srun then end the others.
            time.sleep(SILENT_SECONDS)
            sys.exit(EXIT_USER_ERROR)
        raise
    with storage_errors_as_user_errors(wanted.run):
        return _train_here(wanted) if place is None else _be_a_worker(wanted, place)


def _train_here(config: Config) -> int:
    is_new = not Path(config.run).exists()
    check_corpora(config)
    with only_start(config):
        run = prepare(config)
        note_launch(run)
        print(title(config), flush=True)
        command = module_command("megaptm.train.worker", "--run", str(run))
        try:
            with resource_errors_as_user_errors():
                return launch(
                    command,
                    processes=config.layout.processes,
                    run=run,
                    environment=environment_of(config),
                    threads=config.train.threads,
                    hang_seconds=config.train.hang_seconds,
                    patience=config.data.patience,
                )
        except UserError:
            if is_new:
                discard_unused(run)
            raise


def _be_a_worker(config: Config, place: RankEnvironment) -> int:
    from megaptm.train.run import run_worker

    if place.rank > 0:
        return run_worker(str(wait_until_prepared(config)), place)
    check_corpora(config)
    with only_start(config):
        run = prepare(config)
        note_launch(run)
        return run_worker(str(run), place)


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
    """Run `command` once per rank and return the exit code of the run.

    Rank 0 writes to the terminal; each rank writes to `run/logs/rank-N.log`. When one fails, the others have
    `grace_seconds` to exit, the same again after SIGTERM, and are killed. A user error of a worker (exit code 2) is
    raised here as UserError.

    Returns 75 if none failed and one asks to be continued, and after a hang: see `Watchdog`, also for `hang_seconds`
    and `patience`. Returns 130 after two Ctrl-C.
    """
    logs = run / "logs"
    listener = listen()
    rendezvous = Rendezvous(processes, "127.0.0.1", listener.getsockname()[1])
    # On a terminal rank 0 draws a progress bar and inherits stdout. Otherwise its output is also copied to the log.
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
    """Return the binary stream; that of the process if stdout was replaced by a text-only one, as in notebooks."""
    return stream.buffer if hasattr(stream, "buffer") else original.buffer
