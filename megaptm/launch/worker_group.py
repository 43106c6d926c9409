"""Processes of a run on one machine (all or some ranks), supervised and ended together. No torch."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import IO

from megaptm.launch.log_tee import LogTee
from megaptm.node import available_cpus
from megaptm.processes import end_with_parent
from megaptm.resilience.failures import ProcessExit, failed_exits
from megaptm.resilience.signals import handled_signals
from megaptm.resilience.watchdog import Hang, Watchdog
from megaptm.run.rank import LISTENER
from megaptm.storage import safe_open

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
POLL_SECONDS = 0.05
APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND
BACKLOG = 2048
"""Maximum number of pending connections at the rendezvous, of ranks that start before rank 0 has imported torch."""
KILL_SECONDS = 30.0
"""Seconds to wait for the end of a killed process, which the kernel may delay."""
SAVES = "finishing the step and saving; then exiting with code 75"


@dataclass(frozen=True)
class Rendezvous:
    """Address at which the ranks of a run meet."""

    world: int
    """Number of ranks of the run on all machines."""
    address: str
    """Address of rank 0's machine, at which the ranks meet."""
    port: int


class LocalWorkerGroup:
    """Ranks of a run on one machine. Rank 0's output is copied to `out` and `err`.

    Without `out` rank 0 inherits this process's standard output, to draw a progress bar.
    """

    def __init__(self, command: Sequence[str], *, logs: Path, out: IO[bytes] | None, err: IO[bytes]) -> None:
        self._command, self._logs = list(command), logs
        self._out, self._err = out, err
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._log_starts: dict[int, int] = {}
        self._tees: list[LogTee] = []
        self.ends: list[ProcessExit] = []
        """Exits of the ranks in order of time, without processes that the launcher ended."""
        self.forwarded: set[int] = set()

    def start(self, environments: Mapping[int, dict[str, str]], listener: socket.socket | None = None) -> None:
        """Start a process per rank. `listener`, the socket of the rendezvous, is passed to rank 0 and closed here."""
        self._logs.mkdir(parents=True, exist_ok=True)
        # Restarts append to the same log: output of an earlier start must not be read as new.
        self._log_starts = {
            rank: path.stat().st_size if (path := self._log_path(rank)).exists() else 0 for rank in environments
        }
        # Created before the fork: a child between fork and exec must not import or allocate much.
        child_setup, rank_0_output = _child_setup(), None if self._out is None else subprocess.PIPE
        for rank, environment in environments.items():
            passed_fds: tuple[int, ...] = ()
            if rank == 0 and listener is not None:
                passed_fds, environment = (listener.fileno(),), {**environment, LISTENER: str(listener.fileno())}
            with os.fdopen(safe_open(self._log_path(rank), APPEND), "ab") as log:
                self._processes[rank] = subprocess.Popen(
                    self._command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log if rank else rank_0_output,
                    stderr=log if rank else subprocess.PIPE,
                    # In its own session: Ctrl-C reaches a worker once, through the launcher, and its helpers are killed
                    # with it.
                    start_new_session=True,
                    preexec_fn=child_setup,
                    pass_fds=passed_fds,
                )
        if listener is not None:
            listener.close()  # otherwise ranks would wait at the socket of a dead rank 0
        if first := self._processes.get(0):
            for source, terminal in ((first.stdout, self._out), (first.stderr, self._err)):
                if source is not None and terminal is not None:
                    self._tees.append(LogTee(source, terminal=terminal, log=self._log_path(0)))
                    self._tees[-1].start()

    def forward(self, number: int) -> None:
        """Forward a signal that requests a stop to the ranks of this machine."""
        self.forwarded.add(number)
        self._send_signal(number)

    def wait(self, watchdog: Watchdog | None = None) -> Hang | None:
        """Wait until all ranks of this machine have exited, one has failed, or one hangs; return the hang."""
        if watchdog is not None:
            watchdog.set_pids({rank: process.pid for rank, process in self._processes.items()})
        while self.poll() and not failed_exits(self.ends):
            time.sleep(POLL_SECONDS)
            ended = {end.rank for end in self.ends}
            if watchdog is not None and (hang := watchdog.check_progress(ended, stopping=bool(self.forwarded))):
                return hang
        return None

    def end_all(self, grace_seconds: float) -> None:
        """Let the remaining ranks of this machine exit by themselves, then send SIGTERM, until the deadline. Returns at
        once if none is left."""
        deadline = time.monotonic() + grace_seconds
        while self.poll() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        self._send_signal(signal.SIGTERM)
        deadline += grace_seconds
        while any(process.poll() is None for process in self._processes.values()) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)

    def kill_all(self) -> None:
        """Kill all process groups of the ranks, also those of exited processes, whose helpers may still run."""
        for process in self._processes.values():
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):  # blocked in a call to a lost disk
                process.wait(KILL_SECONDS)
        for tee in self._tees:
            tee.join(timeout=5.0)
        unlogged = b"".join(tee.unlogged for tee in self._tees)
        self.ends = [replace(end, unlogged=unlogged) if end.rank == 0 else end for end in self.ends]

    def release(self) -> None:
        """Print output of rank 0 that was held back as a possible echo of an error: there was no other error."""
        for tee in self._tees:
            tee.release()

    def poll(self) -> bool:
        """Record ranks that have exited; return whether any is alive."""
        known = {end.rank for end in self.ends}
        for rank, process in self._processes.items():
            code = process.poll()
            if rank not in known and code is not None:
                self.ends.append(
                    ProcessExit(rank=rank, code=code, log=self._log_path(rank), log_start=self._log_starts[rank])
                )
        return len(self.ends) < len(self._processes)

    def _send_signal(self, number: int) -> None:
        for process in self._processes.values():
            process.send_signal(number)

    def _log_path(self, rank: int) -> Path:
        return self._logs / f"rank-{rank}.log"


def rank_environments(
    ranks: Sequence[int], rendezvous: Rendezvous, variables: Mapping[str, str], *, threads: int | None
) -> dict[int, dict[str, str]]:
    """Return the environment variables of each rank on this machine. Cores are shared equally unless `threads` is
    set."""
    default_threads = {"OMP_NUM_THREADS": str(max(1, available_cpus() // len(ranks)))}
    configured_threads = {"OMP_NUM_THREADS": str(threads)} if threads is not None else {}
    rendezvous_variables = {
        "MASTER_ADDR": rendezvous.address,
        "MASTER_PORT": str(rendezvous.port),
        "WORLD_SIZE": str(rendezvous.world),
    }
    common = {
        **default_threads,
        **os.environ,
        **configured_threads,
        "PYTHONUNBUFFERED": "1",
        **variables,
        **rendezvous_variables,
    }
    return {rank: {**common, "RANK": str(rank), "LOCAL_RANK": str(local_rank)} for local_rank, rank in enumerate(ranks)}


def open_listener(address: str | None = "127.0.0.1") -> socket.socket:
    """Return a socket for the rendezvous that listens at a free port of this machine; `address` None: at all IPv4 and
    IPv6 addresses."""
    if address is None and socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
    return socket.create_server((address or "", 0), backlog=BACKLOG)


@contextmanager
def forward_signals(send: Callable[[int], None]) -> Iterator[None]:
    """Forward signals that request a stop to the ranks, which save and exit; the launcher waits for them.

    The first Ctrl-C prints a message at once; the second raises KeyboardInterrupt, and later ones are ignored.
    """
    received: set[int] = set()

    def forward(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and number in received:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            raise KeyboardInterrupt
        is_first = number not in received
        received.add(number)  # before the message, which another signal may follow at once
        if is_first:
            name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
            again = ". Ctrl-C again: exit at once, without saving" if number == signal.SIGINT else ""
            with contextlib.suppress(OSError):  # the terminal may be gone
                # Not print: the signal may interrupt one.
                os.write(2, f"\n{name}: {SAVES}{again}.\n".encode())
        send(number)

    before = {number: signal.signal(number, forward) for number in handled_signals(FORWARDED)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _child_setup() -> Callable[[], None]:
    """Return the function that the process of a rank runs before exec."""
    end_with_launcher = end_with_parent(os.getpid())

    def begin() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)  # Ray blocks these signals; ranks need them
        end_with_launcher()

    return begin
