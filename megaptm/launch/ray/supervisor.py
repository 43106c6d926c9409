"""Supervision of a run on a Ray cluster over all its starts: lost nodes, failed ranks, stop requests."""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

from megaptm.config import Config
from megaptm.errors import EXIT_CONTINUE, EXIT_FAILURE, UserError
from megaptm.launch.ray.attempt import READY_SECONDS, Outcome, RunAttempt
from megaptm.launch.ray.placement import place, places_for, refuse
from megaptm.launch.ray.reservation import Reservation, reserve
from megaptm.launch.restart_policy import Ending, RestartPolicy
from megaptm.launch.worker_group import forwarding
from megaptm.plan.elastic import elastic_layout
from megaptm.plan.machine import Machine
from megaptm.plugins import ALLOW_CODE
from megaptm.python_path import named_folders
from megaptm.report.terminal import STARTED_BY
from megaptm.resilience.attempt import Attempt
from megaptm.resilience.events import Events, NodeLostEvent, RestartEvent, last_saved
from megaptm.resilience.failures import exit_code, exit_code_of_hang, exit_code_of_interrupt
from megaptm.resilience.heartbeat import HEARTBEATS
from megaptm.resilience.watchdog import Limits, Watchdog
from megaptm.run.folder import discard_unused, environment_of, note_launch, only_start, prepare
from megaptm.schedulers.ray.cluster import nodes

BUSY_SECONDS = 10.0
"""Seconds in which a job that just ended frees its devices."""


def command_of(address: str | None) -> list[str]:
    """Return the command that starts a run on the cluster at `address`, or the default one, without the run folder."""
    return ["launch", "ray", *(["--address", address] if address else [])]


def show_placement(config: Config) -> None:
    """Print where the ranks would run now. Raise UserError if there is not enough room."""
    kind, there = nodes()
    assignments = place(there, config.layout)
    if assignments is None:
        raise refuse(there, config.layout, kind)
    for assignment in assignments:
        print(f"{assignment}: {len(assignment.ranks)} of its {assignment.node.devices} {kind}s")


class Supervisor:
    """Starts the ranks of a run, and restarts them: after a lost node always, after a failure if there was progress."""

    def __init__(
        self,
        config: Config,
        *,
        wait: float,
        wait_again: float,
        retries: int,
        machine: Machine | None,
        address: str | None = None,
    ) -> None:
        """`address`: address of the cluster, if given on the command line."""
        self._command = command_of(address)
        self._config, self._run = config, Path(config.run)
        self._wait, self._wait_again, self._machine = wait, wait_again, machine
        self._policy = RestartPolicy(self._run, retries=retries)
        self._attempt = Attempt.here() or Attempt(secrets.token_hex(4), 0, 0)
        self._asked: list[int] = []
        """Signals that requested a stop."""
        self._held, self._begun = ExitStack(), False
        """Lock that keeps other commands from the run, taken after the first reservation."""

    def supervise(self) -> int:
        """Supervise the run until it is done, cannot continue, or was stopped; return the exit code."""
        is_new = not self._run.exists()
        with self._held:
            try:
                with forwarding(self._asked.append):
                    return self._supervise()
            except KeyboardInterrupt:
                return exit_code_of_interrupt(run=self._run)
            except UserError:
                if is_new and self._begun:
                    discard_unused(self._run)
                raise

    def _supervise(self) -> int:
        found = self._reserve_first()
        while found is not None:
            saved, outcome = last_saved(self._run), self._start(found)
            code = self._judge(outcome, progress=last_saved(self._run) > saved)
            if code is not None:
                return code
            found = self._reserve_again()
        return EXIT_CONTINUE

    def _reserve_first(self) -> Reservation | None:
        kind, there = nodes()
        busy = places_for([node.devices for node in there], self._config.layout.tensor) >= self._config.layout.processes
        seconds = max(self._wait, BUSY_SECONDS if busy else 0.0)
        found = reserve(self._config.layout, seconds=seconds, given_up=lambda: self._asked)
        if found is None and not self._asked:
            raise refuse(nodes()[1], self._config.layout, kind)
        return found

    def _reserve_again(self) -> Reservation | None:
        """Reserve the full layout if it becomes available in time, else a smaller one."""
        seconds = max(self._wait_again, BUSY_SECONDS)  # devices of the last start become free in a moment
        if found := reserve(self._config.layout, seconds=seconds, given_up=lambda: self._asked):
            return found
        if self._asked:
            return None
        _, there = nodes()
        layout = elastic_layout(
            self._config, lambda tensor: places_for([node.free for node in there], tensor), self._machine
        )
        found = reserve(layout, seconds=BUSY_SECONDS) if layout else None
        if found is None:
            left = ", ".join(f"{node.free} on {node.address}" for node in there) or "nothing"
            print(
                f"No layout of this config fits what is left ({left}): start it again when there is more.",
                file=sys.stderr,
            )
        return found

    def _start(self, found: Reservation) -> Outcome:
        self._attempt = self._attempt.next_start()
        config = self._config.model_copy(update={"layout": found.layout})
        watchdog = Watchdog(
            self._logs / HEARTBEATS,
            range(found.layout.processes),
            limits=Limits(hang_seconds=config.train.hang_seconds, patience=config.data.patience),
        )
        logs = self._logs
        with (
            found,
            RunAttempt(
                found.assignments, found.group, kind=found.kind, run=self._run, logs=logs, watchdog=watchdog
            ) as attempt,
        ):
            if not self._begun:
                self._held.enter_context(only_start(config, attempt=self._attempt))
                self._begun = True
            prepare(config, attempt=self._attempt)
            self._note(found)
            environment = {
                **self._attempt.environment(),
                **environment_of(config),
                STARTED_BY: shlex.join(self._command),
                "PYTHONPATH": os.pathsep.join(named_folders()),
                ALLOW_CODE: os.environ.get(ALLOW_CODE, ""),
            }
            attempt.begin(environment, threads=config.train.threads, asked=self._asked)
            return attempt.run_to_end(self._asked)

    @property
    def _logs(self) -> Path:
        """Log folder of this start, so that late output of a lost node does not mix with the next start."""
        return self._run / "logs" / f"{self._attempt.chain}.{self._attempt.start}"

    def _note(self, found: Reservation) -> None:
        if self._attempt.start == 1:
            note_launch(self._run)
        else:
            with Events(self._run) as events:
                layout = found.layout.model_dump()
                processes = found.layout.processes
                events.write(RestartEvent(start=self._attempt.start, layout=layout, processes=processes))
        where = ", ".join(map(str, found.assignments))
        print(f"Start {self._attempt.start}: {where}; each rank's log is in {self._logs}", flush=True)

    def _judge(self, outcome: Outcome, *, progress: bool) -> int | None:
        """Return the exit code, or None to restart."""
        if outcome.hang:
            code = exit_code_of_hang(outcome.hang, run=self._run)
            return None if self._goes_on("hung", progress=True) else code
        if not (outcome.lost or outcome.broken or outcome.late):
            code = exit_code(outcome.ends, run=self._run, logs=self._logs, forwarded=self._asked)
            return None if code == EXIT_FAILURE and self._goes_on("failed", progress=progress) else code
        with Events(self._run) as events:
            for assignment in outcome.lost:
                events.write(NodeLostEvent(node=assignment.node.address, ranks=list(assignment.ranks)))
                print(f"Lost node {assignment.node.address}, with {assignment}.", file=sys.stderr, flush=True)
        for assignment in outcome.broken:
            print(
                f"The process that watched {assignment} was killed; if nobody did it, the node was out of memory.",
                file=sys.stderr,
            )
        for assignment in outcome.late if not self._asked else ():
            print(
                f"No process on node {assignment.node.address} was ready for {assignment} in {READY_SECONDS / 60:.0f} "
                "minutes: see how long its runtime environment (ray job submit's pip or working directory) takes, and "
                "whether its disk is slow.",
                file=sys.stderr,
            )
        if self._asked:
            name = signal.Signals(self._asked[0]).name
            when = "before it began" if outcome.late else "when it was lost"
            print(f"Stopped by {name} {when}; what was saved earlier stands.", file=sys.stderr)
            return EXIT_CONTINUE
        return None if self._goes_on("node-lost" if outcome.lost else "failed", progress=progress) else EXIT_FAILURE

    def _goes_on(self, ending: Ending, *, progress: bool) -> bool:
        if self._asked or not self._policy.goes_on(ending, progress=progress):
            return False
        if ending != "node-lost":  # lost nodes were reported above
            print("Once again, from what was saved last.", file=sys.stderr, flush=True)
        return True
