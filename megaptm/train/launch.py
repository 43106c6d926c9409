"""Starts the processes of a run on this machine, watches them, and ends all when one fails. Imports no torch."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from megaptm.errors import EXIT_CONTINUE, EXIT_FAILURE, UserError
from megaptm.resilience.events import Events
from megaptm.train.environment import Environment, check_processes, worker_environment
from megaptm.train.relay import Relay
from megaptm.train.verdict import End, account, culprit

__all__ = ["Environment", "check_processes", "launch", "worker_environment"]

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
POLL_SECONDS = 0.05
PR_SET_PDEATHSIG = 1


def launch(
    command: Sequence[str],
    *,
    processes: int,
    run: Path,
    environment: Mapping[str, str] | None = None,
    threads: int | None = None,
    grace_seconds: float = 5.0,
) -> int:
    """Run `command` once for each rank and return the exit code of the whole.

    Rank 0 writes to the terminal; each rank writes to `run/logs/rank-N.log`. When one fails, the others have
    `grace_seconds` to end by themselves, as many again after a SIGTERM, and are killed. A user's mistake in a worker
    (exit code 2) is raised here as `UserError`; 75 is returned when nobody failed and somebody asks to be continued.
    """
    crew = _Crew(command, run=run)
    with _forwarding(crew.forward):
        try:
            crew.start(_environments(processes, environment or {}, threads))
            crew.wait()
            crew.end_all(grace_seconds)
        finally:
            crew.kill_all()
    return crew.verdict()


class _Crew:
    """The processes of one launch."""

    def __init__(self, command: Sequence[str], *, run: Path) -> None:
        self._command, self._run, self._logs = list(command), run, run / "logs"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._begins: list[int] = []
        self._relays: list[Relay] = []
        self._ends: list[End] = []
        """In order of time; without those that we ended."""
        self._forwarded: set[int] = set()

    def start(self, environments: Sequence[dict[str, str]]) -> None:
        self._logs.mkdir(parents=True, exist_ok=True)
        # Restarts append to the same log: what an earlier one said must not be taken for news.
        self._begins = [
            path.stat().st_size if path.exists() else 0 for path in map(self._log, range(len(environments)))
        ]
        # Resolved before the fork: a child between fork and exec may not import or allocate much.
        die_with_parent = _die_with_parent()
        for rank, environment in enumerate(environments):
            with self._log(rank).open("ab") as log:
                self._processes.append(
                    subprocess.Popen(
                        self._command,
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=_rank_0_output() if rank == 0 else log,
                        stderr=subprocess.PIPE if rank == 0 else log,
                        # A group of its own: Ctrl-C reaches a worker once, through us, and its helpers die with it.
                        start_new_session=True,
                        preexec_fn=die_with_parent,
                    )
                )
        first = self._processes[0]
        for source, terminal in ((first.stdout, sys.stdout), (first.stderr, sys.stderr)):
            if source is not None:
                self._relays.append(Relay(source, terminal=terminal.buffer, log=self._log(0)))
                self._relays[-1].start()

    def forward(self, number: int) -> None:
        """Pass on a signal that asks for a stop."""
        self._forwarded.add(number)
        self._send(number)

    def wait(self) -> None:
        """Until all have ended or one has failed."""
        while self._look() and not self._failures:
            time.sleep(POLL_SECONDS)

    def end_all(self, grace_seconds: float) -> None:
        """Let those that are left notice by themselves, then ask, then kill. At once when none is left."""
        deadline = time.monotonic() + grace_seconds
        while self._look() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        self._send(signal.SIGTERM)
        deadline += grace_seconds
        while any(process.poll() is None for process in self._processes) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)

    def kill_all(self) -> None:
        """Kill every group, also that of a process that has ended: its helpers may not have."""
        for process in self._processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        for process in self._processes:
            process.wait()
        for relay in self._relays:
            relay.join(timeout=5.0)

    def verdict(self) -> int:
        """Say what went wrong, the guilty one first, and return the exit code."""
        if not self._failures:
            for relay in self._relays:
                relay.release()
            return EXIT_CONTINUE if any(end.code == EXIT_CONTINUE for end in self._ends) else 0
        guilty = culprit(self._failures)
        with Events(self._run) as events:
            events.write("worker-lost", rank=guilty.rank, code=guilty.code, problem=guilty.problem)
        if guilty.user_error is not None:
            raise UserError(guilty.user_error)
        if -guilty.code in self._forwarded:
            name = signal.Signals(-guilty.code).name
            print(f"Stopped by {name} before a step was done; what was saved earlier stands.", file=sys.stderr)
            return EXIT_CONTINUE
        print(account(guilty), file=sys.stderr)
        others = sorted(end.rank for end in self._failures if end is not guilty)
        after = f" Then failed: rank {', '.join(map(str, others))}." if others else ""
        print(f"What each rank wrote is in {self._logs}.{after}", file=sys.stderr, flush=True)
        return EXIT_FAILURE

    @property
    def _failures(self) -> list[End]:
        return [end for end in self._ends if end.code not in (0, EXIT_CONTINUE)]

    def _send(self, number: int) -> None:
        for process in self._processes:
            process.send_signal(number)

    def _log(self, rank: int) -> Path:
        return self._logs / f"rank-{rank}.log"

    def _look(self) -> bool:
        """Write down who has ended since; whether anybody is alive."""
        known = {end.rank for end in self._ends}
        for rank, process in enumerate(self._processes):
            code = process.poll()
            if rank not in known and code is not None:
                self._ends.append(End(rank=rank, code=code, log=self._log(rank), begin=self._begins[rank]))
        return len(self._ends) < len(self._processes)


def _environments(processes: int, given: Mapping[str, str], threads: int | None) -> list[dict[str, str]]:
    """The environment of each rank; cores are shared equally unless the user says otherwise."""
    share = {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // processes))}
    wanted = {"OMP_NUM_THREADS": str(threads)} if threads is not None else {}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(processes)}
    common = {**share, **os.environ, **wanted, "PYTHONUNBUFFERED": "1", **given, **meeting}
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _rank_0_output() -> int | None:
    """The terminal itself, so that a progress bar can draw on it; where there is none, a pipe that is also logged."""
    return None if sys.stdout.isatty() else subprocess.PIPE


def _die_with_parent() -> Callable[[], None] | None:
    """What a child does first, so that the kernel kills it when the launcher dies, whatever killed the launcher."""
    if not sys.platform.startswith("linux"):
        return None
    prctl, launcher = ctypes.CDLL(None, use_errno=True).prctl, os.getpid()

    def promise() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:  # it died before the promise was made
            os._exit(EXIT_FAILURE)

    return promise


@contextmanager
def _forwarding(send: Callable[[int], None]) -> Iterator[None]:
    """Hand the signals that ask for a stop to the workers, which save and leave; the launcher only waits for them."""

    def forward(number: int, frame: FrameType | None) -> None:
        send(number)

    before = {number: signal.signal(number, forward) for number in FORWARDED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
