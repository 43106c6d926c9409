"""The run under faults, which is started again as a scheduler would, and what faults can reach of it."""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from megaptm.checkpoint.committed import find_committed
from megaptm.errors import EXIT_CONTINUE
from tests import ROOT
from tests.drills.program import arguments
from tests.faults.history import SAVE_EVERY, History
from tests.faults.outcomes import FaultError
from tests.faults.services import Services
from tests.processes import command_of, parents_alone, send

POLL_SECONDS = 0.05
HANG_SECONDS = 10.0
SETTINGS = (
    *("model.dropout=0.1", "train.batch=48", "train.steps=1000000", "optimizer.decay=constant"),
    *("optimizer.warmup_steps=10", "data.workers=1", "data.max_cache_bytes=200000", "data.timeout_seconds=120"),
    *(f"checkpoint.every={SAVE_EVERY}", "checkpoint.keep=4", "train.restarts=3"),
    *(f"train.hang_seconds={HANG_SECONDS}", "train.validate_every=null", "train.check_replicas_every=5"),
    # Only NaN and noise are spikes: at a constant rate the gradients of a long run on a small corpus have spikes, too.
    "train.spikes={action: roll-back, sigmas: 100, window: 64}",
)
"""Settings of the run, besides those of `tests.drills.program.SMALL`."""


class Job:
    """Run under faults. `tick` follows its journals, and starts it again."""

    def __init__(self, folder: Path, services: Services, *, num_ranks: int, pace: float, max_seconds: float) -> None:
        """Start the run. `pace`: minimum seconds of a step. `max_seconds`: time after which a fault counts as one that
        the run has not recovered from."""
        self.folder, self.services, self.num_ranks, self.max_seconds = folder, services, num_ranks, max_seconds
        self.s3: Any = services.s3
        self.tracker: Any = services.tracker
        self.disk = services.disk or folder / "disk"
        self.run, self.cache, self._armed = self.disk / "run", folder / "cache", folder / "armed"
        self._armed.mkdir()
        self._log, self._clock, self.clock_offset = folder / "job.log", folder / "clock", 0
        self._clock.write_bytes(bytes(8))
        self.history = History(self.run, self._log)
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "LD_PRELOAD": str(services.library),
            "ARMED_FAULTS": str(self._armed),
            "CLOCK_OFFSET": str(self._clock),
        }
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)  # each start would compile the project again
        self._words = self.arguments(self.run, services.corpus, f"data.cache_dir={self.cache}")
        self._words += [f"callbacks={{'tests.faults.callback:Faults': {{seconds_per_step: {pace}}}}}"]
        if self.tracker:
            self._words += ["track.enabled=true", f"track.uri={self.tracker.uri}"]
        self._start()

    def arguments(self, run: Path, corpus: str, *overrides: str) -> list[str]:
        layout = (f"layout.data={self.num_ranks}", f"layout.microbatch={48 // self.num_ranks}")
        return ["train", *arguments("gpt2", run, corpus, *SETTINGS, *layout, *overrides)]

    # Supervision

    def _start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "megaptm", *self._words], env=self._environment, stdout=log, stderr=log, cwd=ROOT
            )

    def tick(self) -> None:
        """Read the journals and logs; start the run again if it has ended."""
        self.history.read()
        if (code := self.process.poll()) is not None:
            self.history.add_sign("ended")
            if code >= 0 and code != EXIT_CONTINUE:
                raise FaultError(f"exit code {code}: {self._log.read_text(errors='replace').rstrip()[-300:]}")
            self._start()
        time.sleep(POLL_SECONDS)

    def run_for(self, seconds: float) -> None:
        """Follow the run for some seconds."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.tick()

    def wait_for(self, condition: Callable[[], object], problem: str = "not recovered") -> None:
        deadline = time.monotonic() + self.max_seconds
        while not condition():
            if time.monotonic() > deadline:
                raise FaultError(f"{problem} in {self.max_seconds:.0f} s")
            self.tick()

    def stop(self) -> None:
        """Stop the run, which saves its last step."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(self.max_seconds)
        except subprocess.TimeoutExpired:
            raise FaultError(f"the run did not stop in {self.max_seconds:.0f} s") from None
        finally:
            self.history.read()

    def restart(self) -> None:
        """Let the run continue after a fault that it did not recover from, as a person would."""
        self._kill()
        for path in self._armed.iterdir():
            path.unlink()
        self._start()

    def close(self) -> None:
        self._kill()
        shutil.rmtree(self.run, ignore_errors=True)

    def _kill(self) -> None:
        if self.process.poll() is None:
            send(self._find_processes("all"), signal.SIGKILL)
            self.process.wait()

    # Reach of faults

    def arm(self, name: str, content: str) -> tuple[Callable[[], bool], Callable[[], None]]:
        """Arm a fault, which a process then takes once. Return functions that tell whether it was taken, and that
        disarm it."""
        armed, done = self._armed / name, self._armed / f"{name}.done"
        done.unlink(missing_ok=True)
        new = self.folder / "new-fault"
        new.write_text(content)
        new.rename(armed)
        return done.exists, lambda: armed.unlink(missing_ok=True)

    def shift_clock(self, seconds: int) -> None:
        """Shift the wall clock of all processes of the run."""
        self.clock_offset += seconds
        with self._clock.open("r+b") as file:  # mapped by the processes
            file.write(struct.pack("q", self.clock_offset))

    def newest_checkpoint(self) -> Path:
        return max(find_committed(self.run).items())[1]

    def processes_of(self, victim: str) -> list[psutil.Process]:
        """Return the processes of a role (launcher, rank, loader, all), once there are any."""
        self.wait_for(lambda: self._find_processes(victim), f"no {victim}")
        return self._find_processes(victim)

    def _find_processes(self, victim: str) -> list[psutil.Process]:
        try:
            launcher = psutil.Process(self.process.pid)
            children = launcher.children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        workers = [child for child in children if "megaptm.train.worker" in command_of(child)]
        ranks = parents_alone(workers)
        loaders = [process for process in workers if process not in ranks]
        return {"launcher": [launcher], "rank": ranks, "loader": loaders, "all": [launcher, *children]}[victim]
