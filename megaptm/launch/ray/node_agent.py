"""Ray actor that starts and supervises the ranks on one node. They die with it."""

from __future__ import annotations

import io
import os
import signal
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from megaptm.launch.worker_group import POLL_SECONDS, LocalWorkerGroup, Rendezvous, open_listener, rank_environments
from megaptm.python_path import module_command, named_folders
from megaptm.resilience.failures import ProcessExit

POLL_LIMIT_SECONDS = 1.0
"""Maximum seconds of a `poll` call without new output."""


@dataclass(frozen=True)
class AgentReport:
    """Report of a node's agent: new output and exits of ranks."""

    out: bytes = b""
    """New standard output of rank 0 since the last report."""
    err: bytes = b""
    ends: list[ProcessExit] = field(default_factory=list)
    alive: bool = True


class OutputBuffer(io.RawIOBase):
    """Buffer of the ranks' output, read from time to time by the driver."""

    def __init__(self) -> None:
        self._text = b""
        self._lock = threading.Lock()

    def write(self, text: bytes) -> int:  # type: ignore[override]
        with self._lock:
            self._text += text
        return len(text)

    def take(self) -> bytes:
        """Return the output of the ranks since the last call."""
        with self._lock:
            text, self._text = self._text, b""
        return text


class NodeAgent:
    """Agent of a node, a Ray actor that starts the ranks on it. All methods except `end` are short, because an actor
    runs one at a time.

    Ray calls them on the main thread. This is required: the kernel kills the ranks when the thread that started them
    ends.
    """

    def __init__(self, module: str, run: Path, logs: Path) -> None:
        # This node's Python may have another path than the driver's.
        command = module_command(module, "--run", str(run))
        self._out, self._err = OutputBuffer(), OutputBuffer()
        self._listener: socket.socket | None = None
        self._workers = LocalWorkerGroup(command, logs=logs, out=self._out, err=self._err)  # type: ignore[arg-type]

    def rendezvous(self, address: str, world: int) -> Rendezvous:
        """Return an address on this node where all ranks can meet; the socket stays open until rank 0 takes it."""
        self._listener = open_listener(None)
        return Rendezvous(world, address, self._listener.getsockname()[1])

    def path_exists(self, path: Path) -> bool:
        """Whether this node sees a file that another node wrote."""
        return path.exists()

    def start(self, ranks: range, rendezvous: Rendezvous, variables: Mapping[str, str], threads: int | None) -> None:
        # Ray sets the number of threads of an actor, which must not apply to ranks.
        os.environ.pop("OMP_NUM_THREADS", None)
        # Folders of the driver, then those of this node.
        folders = [*variables.get("PYTHONPATH", "").split(os.pathsep), *named_folders()]
        variables = {**variables, "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, folders)))}
        self._workers.start(rank_environments(ranks, rendezvous, variables, threads=threads), self._listener)

    def poll(self, known: int) -> AgentReport:
        """Return the report of this node's ranks as soon as there is something new. `known`: number of exits that the
        driver knows; a reply may get lost."""
        deadline = time.monotonic() + POLL_LIMIT_SECONDS
        while True:
            alive = self._workers.poll()
            new = self._make_report(known, alive=alive)
            if new.out or new.err or new.ends or not alive or time.monotonic() > deadline:
                return new
            time.sleep(POLL_SECONDS)

    def forward(self, number: int) -> None:
        self._workers.forward(signal.Signals(number))

    def end(self, known: int, grace_seconds: float) -> AgentReport:
        """End all remaining ranks of this node and return the remaining output, except a traceback held back."""
        self._workers.end_all(grace_seconds)
        self._workers.kill_all()
        return self._make_report(known, alive=False)

    def release(self, known: int) -> AgentReport:
        """Return the output of the node's ranks that was held back. Called after `end`."""
        self._workers.release()
        return self._make_report(known, alive=False)

    def _make_report(self, known: int, *, alive: bool) -> AgentReport:
        return AgentReport(self._out.take(), self._err.take(), self._workers.ends[known:], alive)
