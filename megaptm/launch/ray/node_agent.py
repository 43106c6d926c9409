"""The ranks on one node, watched by an actor there: it starts them, and they die with it."""

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

from megaptm.launch.worker_group import POLL_SECONDS, LocalWorkerGroup, Rendezvous, environments, listen
from megaptm.python_path import module_command, named_folders
from megaptm.resilience.failures import ProcessExit

LOOK_SECONDS = 1.0
"""How long a look may take when there is nothing to see."""


@dataclass(frozen=True)
class AgentReport:
    """What is new about some ranks."""

    out: bytes = b""
    """Of rank 0's standard output."""
    err: bytes = b""
    ends: list[ProcessExit] = field(default_factory=list)
    alive: bool = True


class OutputBuffer(io.RawIOBase):
    """A terminal that is read by somebody else, from time to time."""

    def __init__(self) -> None:
        self._text = b""
        self._lock = threading.Lock()

    def write(self, text: bytes) -> int:  # type: ignore[override]
        with self._lock:
            self._text += text
        return len(text)

    def take(self) -> bytes:
        """What was written since."""
        with self._lock:
            text, self._text = self._text, b""
        return text


class NodeAgent:
    """One node's part of a run. All methods are short but `end`: an actor does one thing after the other.

    Ray calls them on the main thread, as it must be: the kernel ends the ranks when the thread ends that started them.
    """

    def __init__(self, module: str, run: Path, logs: Path) -> None:
        # Of the node: its Python need not be where the driver's is.
        command = module_command(module, "--run", str(run))
        self._out, self._err = OutputBuffer(), OutputBuffer()
        self._listener: socket.socket | None = None
        self._workers = LocalWorkerGroup(command, logs=logs, out=self._out, err=self._err)  # type: ignore[arg-type]

    def rendezvous(self, address: str, world: int) -> Rendezvous:
        """A place on this node where all ranks can meet, kept until rank 0 takes it."""
        self._listener = listen(None)
        return Rendezvous(world, address, self._listener.getsockname()[1])

    def sees(self, path: Path) -> bool:
        """Whether this node has the file that another one wrote."""
        return path.exists()

    def start(self, ranks: range, rendezvous: Rendezvous, given: Mapping[str, str], threads: int | None) -> None:
        # Ray says how many threads an actor may have, which is none of the ranks' business.
        os.environ.pop("OMP_NUM_THREADS", None)
        # The folders of the driver, then those of this node.
        folders = [*given.get("PYTHONPATH", "").split(os.pathsep), *named_folders()]
        given = {**given, "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, folders)))}
        self._workers.start(environments(ranks, rendezvous, given, threads=threads), self._listener)

    def look(self, known: int) -> AgentReport:
        """What is new, as soon as anything is. `known`: how many ends were heard of; a reply may get lost."""
        deadline = time.monotonic() + LOOK_SECONDS
        while True:
            alive = self._workers.look()
            new = self._look(known, alive=alive)
            if new.out or new.err or new.ends or not alive or time.monotonic() > deadline:
                return new
            time.sleep(POLL_SECONDS)

    def forward(self, number: int) -> None:
        self._workers.forward(signal.Signals(number))

    def end(self, known: int, grace_seconds: float) -> AgentReport:
        """End all that is left, and say what is still to be said, but for an error that may be an echo."""
        self._workers.end_all(grace_seconds)
        self._workers.kill_all()
        return self._look(known, alive=False)

    def release(self, known: int) -> AgentReport:
        """After `end`: what was kept back."""
        self._workers.release()
        return self._look(known, alive=False)

    def _look(self, known: int, *, alive: bool) -> AgentReport:
        return AgentReport(self._out.take(), self._err.take(), self._workers.ends[known:], alive)
