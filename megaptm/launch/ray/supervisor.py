"""Supervision of a run on a Ray cluster over all its starts: lost nodes, failed ranks, stop requests."""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from megaptm.config import Config
from megaptm.errors import EXIT_CONTINUE, EXIT_FAILURE, UserError
from megaptm.launch.ray.attempt import POLL_SECONDS, READY_SECONDS, AttemptOutcome, RunAttempt
from megaptm.launch.ray.placement import assign_ranks, count_ranks, not_enough_devices_error, without_excluded
from megaptm.launch.ray.reservation import Reservation, reserve_devices
from megaptm.launch.restart_policy import Ending, RestartPolicy, SickNodes
from megaptm.launch.worker_group import forward_signals
from megaptm.plan.elastic import elastic_layout
from megaptm.plan.machine import Machine
from megaptm.plugins import ALLOW_CODE
from megaptm.python_path import named_folders
from megaptm.report.terminal import STARTED_BY
from megaptm.resilience.attempt import Attempt
from megaptm.resilience.events import NodeExcludedEvent, RestartEvent, has_rolled_back, record_events
from megaptm.resilience.failures import (
    failed_exits,
    report_exits,
    report_hang,
    report_interrupt,
    report_stop,
    root_cause,
)
from megaptm.resilience.heartbeat import HEARTBEATS
from megaptm.resilience.watchdog import Watchdog, WatchdogLimits
from megaptm.run.folder import (
    absolute_paths,
    config_variables,
    discard_unused_run,
    exclusive_start,
    log_launch,
    prepare_run_folder,
)
from megaptm.schedulers.ray.cluster import alive_ray_nodes

BUSY_SECONDS = 10.0
"""Seconds in which a job that has just ended frees its devices."""


def launch_command(address: str | None) -> list[str]:
    """Return the command that starts a run on the cluster at `address`, or the default one, without the run folder."""
    return ["launch", "ray", *(["--address", address] if address else [])]


def show_placement(config: Config) -> None:
    """Print the nodes on which the ranks would run now. Raise UserError if there is not enough room."""
    kind, nodes = alive_ray_nodes()
    assignments = assign_ranks(nodes, config.layout)
    if assignments is None:
        raise not_enough_devices_error(nodes, config.layout, kind)
    for assignment in assignments:
        print(f"{assignment}: {len(assignment.ranks)} of its {assignment.node.devices} {kind}s")


class Supervisor:
    """Supervisor of a run on Ray: it starts and restarts the ranks. It always restarts after a lost node, and after a
    failure if `RestartPolicy` allows it. Nodes that fail repeatedly are not used again."""

    def __init__(
        self,
        config: Config,
        *,
        wait: float,
        wait_again: float,
        machine: Machine | None,
        address: str | None = None,
        change: bool = False,
    ) -> None:
        """Prepare the supervision of a run. `address`: address of the cluster, if given on the command line. `change`:
        the config may alter the run that it continues."""
        self._command = launch_command(address)
        self._config, self._run, self._change = config, Path(config.run), change
        self._wait, self._wait_again, self._machine = wait, wait_again, machine
        self._policy = RestartPolicy(self._run, restarts=config.train.restarts)
        self._attempt = Attempt.from_environment() or Attempt(secrets.token_hex(4), 0, 0)
        self._stop_signals: list[int] = []
        """Signals that requested a stop."""
        self._sick = SickNodes(self._run, hours=config.train.node_fault_hours)
        self._sick.release()  # nodes that failed before this command may be repaired
        self._nodes: dict[int, str] = {}
        """Address of the node of each rank."""
        self._lock, self._is_locked = ExitStack(), False
        """Lock of the run against other commands, acquired after the first reservation."""

    def supervise(self) -> int:
        """Supervise the run until it is done, cannot continue, or was stopped; return the exit code."""
        is_new = not self._run.exists()
        with self._lock:
            try:
                with forward_signals(self._stop_signals.append):
                    return self._supervise_locked()
            except KeyboardInterrupt:
                return report_interrupt(run=self._run)
            except UserError:
                if is_new and self._is_locked:
                    discard_unused_run(self._run)
                raise

    def _supervise_locked(self) -> int:
        reservation = self._reserve_first()
        while reservation is not None:
            self._nodes = {rank: each.node.address for each in reservation.assignments for rank in each.ranks}
            if (code := self._exit_code(self._run_attempt(reservation))) is not None:
                return code
            if self._stop_signals:
                return report_stop(self._stop_signals[0], run=self._run)
            self._exclude_nodes()
            reservation = self._reserve_again(max(self._wait_again, BUSY_SECONDS))
        return EXIT_CONTINUE

    def _reserve_first(self) -> Reservation | None:
        kind, nodes = alive_ray_nodes()
        has_devices = (
            count_ranks([node.devices for node in nodes], self._config.layout.tensor) >= self._config.layout.processes
        )
        seconds = max(self._wait, BUSY_SECONDS if has_devices else 0.0)
        reservation = reserve_devices(self._config.layout, seconds=seconds, should_stop=lambda: self._stop_signals)
        if reservation is None and not self._stop_signals:
            raise not_enough_devices_error(alive_ray_nodes()[1], self._config.layout, kind)
        return reservation

    def _reserve_again(self, seconds: float) -> Reservation | None:
        """Reserve devices for the full layout if they become available within `seconds`, else for a smaller one; on
        excluded nodes only if there are not enough others."""
        excluded = self._sick.excluded
        reserve = partial(reserve_devices, should_stop=lambda: self._stop_signals, excluded=excluded)
        if reservation := reserve(self._config.layout, seconds=seconds):
            return reservation
        if self._stop_signals:
            return None
        nodes = without_excluded(alive_ray_nodes()[1], excluded)
        layout = elastic_layout(
            self._config, lambda tensor: count_ranks([node.free for node in nodes], tensor), self._machine
        )
        reservation = reserve(layout, seconds=BUSY_SECONDS) if layout else None
        if reservation is None and excluded:
            print(f"The other nodes are too few: {', '.join(self._sick.release())} may be used again.", file=sys.stderr)
            return self._reserve_again(BUSY_SECONDS)
        if reservation is None:
            free = ", ".join(f"{node.free} on {node.address}" for node in nodes) or "nothing"
            print(
                f"No layout of this config fits the free devices ({free}): start the run again when there are more.",
                file=sys.stderr,
            )
        return reservation

    def _run_attempt(self, reservation: Reservation) -> AttemptOutcome:
        self._attempt = self._attempt.next_start()
        config = absolute_paths(self._config.model_copy(update={"layout": reservation.layout}), change=self._change)
        watchdog = Watchdog(
            self._logs / HEARTBEATS,
            range(reservation.layout.processes),
            limits=WatchdogLimits(hang_seconds=config.train.hang_seconds, data_timeout=config.data.timeout_seconds),
        )
        logs = self._logs
        with (
            reservation,
            RunAttempt(
                reservation.assignments,
                reservation.group,
                kind=reservation.kind,
                run=self._run,
                logs=logs,
                watchdog=watchdog,
            ) as attempt,
        ):
            if not self._is_locked:
                self._lock.enter_context(exclusive_start(config, attempt=self._attempt))
                self._is_locked = True
            prepare_run_folder(config, change=self._change, attempt=self._attempt)
            self._log_start(reservation)
            environment = {
                **self._attempt.environment(),
                **config_variables(self._run),
                STARTED_BY: shlex.join(self._command),
                "PYTHONPATH": os.pathsep.join(named_folders()),
                ALLOW_CODE: os.environ.get(ALLOW_CODE, ""),
            }
            attempt.begin(environment, threads=config.train.threads, signals=self._stop_signals)
            return attempt.run_to_end(self._stop_signals)

    @property
    def _logs(self) -> Path:
        """Return the log folder of this start of a run on Ray. Late output of a lost node then does not mix with that
        of the next start."""
        return self._run / "logs" / f"{self._attempt.chain}.{self._attempt.start}"

    def _log_start(self, reservation: Reservation) -> None:
        if self._attempt.start == 1:
            log_launch(self._run)
        else:
            layout, processes = reservation.layout.model_dump(), reservation.layout.processes
            record_events(self._run, RestartEvent(start=self._attempt.start, layout=layout, processes=processes))
        assignments = ", ".join(map(str, reservation.assignments))
        print(f"Start {self._attempt.start}: {assignments}; logs of the ranks: {self._logs}", flush=True)

    def _exit_code(self, outcome: AttemptOutcome) -> int | None:
        """Return the exit code of the run on Ray, or None to restart it."""
        if outcome.hang:
            event = outcome.hang.event
            event = replace(event, node=self._nodes[event.rank] if event.node else None)
            code = report_hang(replace(outcome.hang, event=event), run=self._run, signals=self._stop_signals)
            return None if self._may_restart("hung") else code
        if not (outcome.lost or outcome.broken or outcome.late):
            code = report_exits(
                outcome.ends, run=self._run, logs=self._logs, forwarded=self._stop_signals, nodes=self._nodes
            )
            if code == EXIT_CONTINUE and has_rolled_back(self._run) and self._may_restart("rolled-back"):
                self._config = absolute_paths(self._config, change=self._change)  # with the batches to skip
                return None
            may_pass = code == EXIT_FAILURE and root_cause(failed_exits(outcome.ends)).is_fault_of_machine
            return None if may_pass and self._may_restart("failed") else code
        record_events(self._run, *outcome.loss_events(stopping=bool(self._stop_signals)))
        for assignment in outcome.lost:
            print(f"Lost node {assignment.node.address}, with {assignment}.", file=sys.stderr, flush=True)
        for assignment in outcome.broken:
            print(
                f"The agent of {assignment} was killed; unless a user killed it, its node ran out of memory.",
                file=sys.stderr,
            )
        for assignment in outcome.late if not self._stop_signals else ():
            print(
                f"The agent of {assignment} was not ready in {READY_SECONDS / 60:.0f} minutes: check how long its "
                "runtime environment (pip packages or working directory of ray job submit) takes, and whether its disk "
                "is slow.",
                file=sys.stderr,
            )
        if self._stop_signals:
            name = signal.Signals(self._stop_signals[0]).name
            when = "before it started" if outcome.late else "after a node was lost"
            print(f"Stopped by {name} {when}; earlier checkpoints are kept.", file=sys.stderr)
            return EXIT_CONTINUE
        return None if self._may_restart("node-lost" if outcome.lost else "failed") else EXIT_FAILURE

    def _may_restart(self, ending: Ending) -> bool:
        if self._stop_signals or not self._policy.may_restart(ending):
            return False
        print(self._policy.describe_restart(), file=sys.stderr, flush=True)
        deadline = time.monotonic() + self._policy.pause
        while time.monotonic() < deadline and not self._stop_signals:
            time.sleep(POLL_SECONDS)
        return True

    def _exclude_nodes(self) -> None:
        """Exclude Ray nodes that fail repeatedly from the next starts."""
        for node in self._sick.exclude():
            print(
                f"Node {node} was lost, or ranks on it crashed or hung, at least twice: it is used again only if the "
                "others are too few.",
                file=sys.stderr,
                flush=True,
            )
            record_events(self._run, NodeExcludedEvent(node=node))
