"""Hugging Face copies of checkpoints, written by another process beside training (`hub.export_every`)."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from megaptm.checkpoint.committed import find_committed
from megaptm.config import Config
from megaptm.processes import end_with_parent
from megaptm.resilience.events import Events, HubExportEvent

FOLDER = "hf"
"""Folder in that of a checkpoint with its copy."""
NICENESS = 5
"""Priority of the process that exports: a third of the share of a training process, should no core be idle."""
MAX_SECONDS = 3600.0
"""Maximum seconds of a copy and its push, for which the end of a run may have to wait."""

log = logging.getLogger(__name__)


def is_export_due(config: Config, previous: int, step: int) -> bool:
    """Whether the checkpoint of a step is exported: the first one of every so many steps, and the last.

    `previous`: step of the checkpoint before.
    """
    every = config.hub.export_every
    return every is not None and (step // every > previous // every or step == config.train.steps)


class HubExporter:
    """Thread of rank 0 that exports one checkpoint after the other, each by `megaptm export hf`."""

    def __init__(self, run: Path, config: Config, events: Events) -> None:
        self.run, self.config, self.events = run, config, events
        self.steps: set[int] = set()
        """Steps of the checkpoints that are exported or wait for it, which must not be removed."""
        self._queue: queue.Queue[int] = queue.Queue()
        threading.Thread(target=self._export_all, name="hub-export", daemon=True).start()

    def begin(self, step: int) -> None:
        """Export a committed checkpoint when the earlier one is done. A checkpoint that still waits is left out."""
        with contextlib.suppress(queue.Empty):
            self._end(self._queue.get_nowait(), 0.0, f"it was not begun before step {step} was saved")
        self.steps.add(step)
        self._queue.put(step)

    def wait(self) -> None:
        """Wait until all checkpoints are exported."""
        self._queue.join()

    def _export_all(self) -> None:
        while True:
            step = self._queue.get()
            start_time = time.monotonic()
            try:
                problem = self._export(step)
            except subprocess.TimeoutExpired:
                problem = f"it took more than {MAX_SECONDS / 60:.0f} minutes"
            except Exception as error:  # whatever it is, training goes on
                problem = repr(error)
            self._end(step, time.monotonic() - start_time, problem)

    def _end(self, step: int, seconds: float, problem: str | None) -> None:
        self.steps.discard(step)
        if problem is not None:
            log.warning("the Hugging Face copy of step %d failed: %s", step, problem.removesuffix("."))
        self.events.write(HubExportEvent(step=step, seconds=round(seconds, 3), problem=problem))
        self._queue.task_done()

    def _export(self, step: int) -> str | None:
        """Export a checkpoint in a process without GPU; return the reason of a failure."""
        hub, folder = self.config.hub, find_committed(self.run)[step] / FOLDER
        words = ["export", "hf", str(self.run), str(folder), "--step", str(step), "--dtype", hub.dtype]
        words += ["--push-to", hub.push_to] if hub.push_to is not None else []
        done = subprocess.run(
            [sys.executable, "-m", "megaptm", *words],
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            preexec_fn=_background_start(os.getpid()),
            text=True,
            errors="replace",
            check=False,
            timeout=MAX_SECONDS,
        )
        if done.returncode == 0:
            return None
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return lines[-1].removeprefix("error: ") if lines else f"its process ended with exit code {done.returncode}"


def _environment() -> dict[str, str]:
    """Return the environment of the process that exports: not that of a rank, and without GPU."""
    ranks = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    inherited = {
        name: value for name, value in os.environ.items() if name not in ranks and not name.startswith("SLURM_")
    }
    return inherited | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def _background_start(parent: int) -> Callable[[], None]:
    """Return the function that a new process calls first."""
    bind_to_parent = end_with_parent(parent)

    def start() -> None:
        os.nice(NICENESS)
        bind_to_parent()

    return start
