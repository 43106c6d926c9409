"""Training on this machine: start the processes, supervise them, and end all when one fails. No torch.

If torchrun or srun started this process, it becomes one of the ranks.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO, Any

import click

from megaptm.config import Config
from megaptm.errors import (
    EXIT_CONTINUE,
    EXIT_USER_ERROR,
    UserError,
    printable,
    resource_errors_as_user_errors,
    storage_errors_as_user_errors,
)
from megaptm.launch.restart_policy import Ending, RestartPolicy
from megaptm.launch.worker_group import (
    POLL_SECONDS,
    LocalWorkerGroup,
    Rendezvous,
    forward_signals,
    open_listener,
    rank_environments,
)
from megaptm.python_path import module_command
from megaptm.report.terminal import run_title
from megaptm.resilience.attempt import Attempt
from megaptm.resilience.events import RestartEvent, has_rolled_back, record_events
from megaptm.resilience.failures import (
    failed_exits,
    report_exits,
    report_hang,
    report_interrupt,
    report_stop,
    root_cause,
)
from megaptm.resilience.heartbeat import HEARTBEATS, VARIABLE
from megaptm.resilience.watchdog import Watchdog, WatchdogLimits
from megaptm.run.back import go_back
from megaptm.run.branch import Branch, created_branch
from megaptm.run.changes import ConfigComparison
from megaptm.run.corpora_checks import check_corpora
from megaptm.run.folder import (
    config_variables,
    discard_unused_run,
    exclusive_start,
    find_config_differences,
    log_launch,
    prepare_run_folder,
    read_config,
    wait_until_prepared,
)
from megaptm.run.rank import RankEnvironment, check_world_size, worker_environment

SILENT_SECONDS = 20.0
"""Seconds for which other ranks leave an error that all ranks detect to rank 0, which may start that much later."""


def train_locally(
    config: Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    change: bool = False,
    branch: Branch | None = None,
    back_to: int | None = None,
    skip_data: int = 0,
) -> int:
    """Train or continue the run of a config; return the exit code of the run, or of this rank.

    `change`: the config may alter the run that it continues. `branch`: create the run first. `back_to`, `skip_data`:
    first return the run to this step, and skip these batches.
    """
    rank_environment = worker_environment()
    if back_to is not None:
        if rank_environment is not None or isinstance(config, Mapping):
            raise UserError(
                "--back-to changes a run once, and launchers repeat their command: name the folder of the run, and use "
                "neither torchrun nor srun."
            )
        message = go_back(config, back_to, skip=skip_data, overrides=overrides, change=change or _can_ask())
        print(printable(message), file=sys.stderr, flush=True)
    with created_branch(branch, is_creator=rank_environment is None or rank_environment.rank == 0):
        return _train(config, overrides, rank_environment, change=change, branch=branch)


def _train(
    config: Path | Mapping[str, Any],
    overrides: Sequence[str],
    rank_environment: RankEnvironment | None,
    *,
    change: bool,
    branch: Branch | None,
) -> int:
    try:
        run_config = read_config(config, overrides, change=change)
        if branch is not None:
            branch.refuse_without_steps(run_config.train.steps)
        if rank_environment is not None:
            check_world_size(rank_environment, run_config.layout)
    except UserError:
        if rank_environment is not None and rank_environment.rank > 0:
            # All ranks detect the same error and rank 0 reports it; torchrun and srun then end the others.
            time.sleep(SILENT_SECONDS)
            sys.exit(EXIT_USER_ERROR)
        raise
    with storage_errors_as_user_errors(run_config.run):
        if rank_environment is not None:
            return _run_as_worker(run_config, rank_environment, change=change)
        if not change and _can_ask() and (differences := find_config_differences(run_config)).can_be_accepted:
            _ask_for_changes(differences)
            run_config, change = read_config(config, overrides, change=True), True
        return _launch_here(run_config, change=change)


def _can_ask() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _ask_for_changes(differences: ConfigComparison) -> None:
    """Ask on a terminal whether a config may alter the run that it continues. Raise `UserError` if it may not."""
    run, listed = printable(differences.run), "".join(f"\n  {printable(str(each))}" for each in differences.changes)
    if not click.confirm(f"This changes the run in {run} from its next step on:{listed}\nContinue?", err=True):
        raise UserError(f"the run in {run} keeps its config, and was not started.")


def _launch_here(config: Config, *, change: bool) -> int:
    is_new = not Path(config.run).exists()
    check_corpora(config)
    with exclusive_start(config):
        run = prepare_run_folder(config, change=change)
        log_launch(run)
        print(run_title(config), flush=True)
        command = module_command("megaptm.train.worker", "--run", str(run))
        try:
            with resource_errors_as_user_errors():
                return launch_ranks(
                    command,
                    processes=config.layout.processes,
                    run=run,
                    threads=config.train.threads,
                    hang_seconds=config.train.hang_seconds,
                    data_timeout=config.data.timeout_seconds,
                    restarts=config.train.restarts,
                )
        except UserError:
            if is_new:
                discard_unused_run(run)
            raise


def _run_as_worker(config: Config, rank_environment: RankEnvironment, *, change: bool) -> int:
    from megaptm.train.run import run_worker

    if rank_environment.rank > 0:
        return run_worker(str(wait_until_prepared(config)), rank_environment)
    check_corpora(config)
    with exclusive_start(config):
        run = prepare_run_folder(config, change=change)
        if (attempt := Attempt.from_environment()) is None or attempt.start == 0:  # else its launcher recorded it
            log_launch(run)
        return run_worker(str(run), rank_environment)


@dataclass(frozen=True)
class LaunchResult:
    """End of one start of a run."""

    code: int
    """Exit code of the run."""
    reason: Ending | None = None
    """Reason to start the run again; None if the run is complete, was stopped, or failed by an error of the program."""


def launch_ranks(command: Sequence[str], *, run: Path, restarts: int = 0, **options: Any) -> int:
    """Run `command` once per rank and return the exit code of the run. `options`: see `_launch_once`.

    After a hang, and if a rank was killed or its hardware failed, all ranks are started again, at most `restarts`
    times without a new checkpoint between.
    """
    policy = RestartPolicy(run, restarts=restarts)
    for start in count(2):
        ending = _launch_once(command, run=run, **options)
        if ending.reason is None or not policy.may_restart(ending.reason):
            return ending.code
        print(policy.describe_restart(), file=sys.stderr, flush=True)
        if stopped_by := _wait_for_signal(policy.pause):
            return report_stop(stopped_by, run=run)
        record_events(run, RestartEvent(start=start))
    raise AssertionError


def _wait_for_signal(seconds: float) -> int | None:
    """Wait, at most until a signal asks the run to stop; return the signal."""
    signals: list[int] = []
    deadline = time.monotonic() + seconds
    with forward_signals(signals.append):
        while not signals and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
    return signals[0] if signals else None


def _launch_once(
    command: Sequence[str],
    *,
    processes: int,
    run: Path,
    environment: Mapping[str, str] | None = None,
    threads: int | None = None,
    grace_seconds: float = 5.0,
    hang_seconds: float | None = None,
    data_timeout: float = 0.0,
) -> LaunchResult:
    """Run `command` once per rank until all have ended.

    Rank 0 writes to the terminal; each rank writes to `run/logs/rank-N.log`. When one fails, the others have
    `grace_seconds` to exit, the same again after SIGTERM, and are killed. A user error of a worker (exit code 2) is
    raised here as UserError.

    The exit code is 75 if none failed and one asks to be continued, and after a hang: see `Watchdog`, also for
    `hang_seconds` and `data_timeout`. It is 130 after two Ctrl-C.
    """
    logs = run / "logs"
    listener = open_listener()
    rendezvous = Rendezvous(processes, "127.0.0.1", listener.getsockname()[1])
    # On a terminal rank 0 draws a progress bar and inherits stdout. Otherwise its output is also copied to the log.
    out = None if sys.stdout.isatty() else _binary_stream(sys.stdout, sys.__stdout__)
    workers = LocalWorkerGroup(command, logs=logs, out=out, err=_binary_stream(sys.stderr, sys.__stderr__))
    beats = logs / HEARTBEATS / secrets.token_hex(4)
    watchdog = Watchdog(
        beats, range(processes), limits=WatchdogLimits(hang_seconds=hang_seconds, data_timeout=data_timeout)
    ).clear()
    # After a new phase or a roll-back, a start has another config than the one before.
    variables = {**config_variables(run), **(environment or {}), VARIABLE: str(watchdog.folder)}
    with forward_signals(workers.forward):
        try:
            workers.start(rank_environments(range(processes), rendezvous, variables, threads=threads), listener)
            if hang := workers.wait(watchdog):
                code = report_hang(hang, run=run, signals=workers.forwarded)
                return LaunchResult(code, None if workers.forwarded else "hung")
            workers.end_all(grace_seconds)
        except KeyboardInterrupt:
            return LaunchResult(report_interrupt(run=run))
        finally:
            workers.kill_all()
    failed = failed_exits(workers.ends)
    if not failed:
        workers.release()
    code = report_exits(workers.ends, run=run, logs=logs, forwarded=workers.forwarded)
    if not failed and not workers.forwarded and code == EXIT_CONTINUE and has_rolled_back(run):
        return LaunchResult(code, "rolled-back")
    may_pass = bool(failed) and not workers.forwarded and root_cause(failed).is_fault_of_machine
    return LaunchResult(code, "failed" if may_pass else None)


def _binary_stream(stream: Any, original: Any) -> IO[bytes]:
    """Return the binary stream of a text stream such as stdout. Notebooks replace stdout by a text-only stream; return
    the stream of the process (`original`) then."""
    return stream.buffer if hasattr(stream, "buffer") else original.buffer
