"""A long run on several processes under one fault after the other. It is started again as a scheduler would."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from megaptm.checkpoint.committed import find_committed
from megaptm.checkpoint.store import Store
from megaptm.errors import EXIT_CONTINUE
from megaptm.track import upload
from tests import ROOT
from tests.drills.program import arguments, finish, losses
from tests.faults.kinds import Kind
from tests.faults.random_shard import RandomShardError
from tests.faults.services import Services
from tests.processes import command_of, parents_alone, send

POLL_SECONDS = 0.05
HANG_SECONDS = 10.0
SAVE_EVERY = 10
"""Steps between two checkpoints."""
SETTINGS = (
    *("model.dropout=0.1", "train.batch=48", "train.steps=1000000", "optimizer.decay=constant"),
    *("optimizer.warmup_steps=10", "data.workers=1", "data.max_cache_bytes=200000", "data.timeout_seconds=120"),
    *(
        f"checkpoint.every={SAVE_EVERY}",
        "checkpoint.keep=4",
        "train.restarts=1000000",
        f"train.hang_seconds={HANG_SECONDS}",
    ),
    *("train.validate_every=null", "train.check_replicas_every=5"),
    "train.spikes={action: roll-back, sigmas: 12, window: 64}",
)
"""Settings of the run, besides those of `tests.drills.program.SMALL`."""
STEPS_AFTER = 5
"""Number of steps after a fault that the run absorbs, in which a consequence would be visible."""


class PersonNeededError(Exception):
    """Raised if the run ended with an exit code after which nothing starts it again."""


@dataclass
class Outcome:
    """Outcome of a fault."""

    kind: str
    detail: str
    step: int
    """Last step before the fault."""
    detected: float | None = None
    """Seconds until an event or message; None: no message."""
    recovered: float | None = None
    """Seconds until the run had recovered (`Kind.until`)."""
    steps_lost: int = 0
    """Number of steps that were trained again."""
    skipped: list[int] = field(default_factory=list)
    """Numbers of batches that a return to a checkpoint skipped."""
    problem: str = ""


class Campaign:
    """Run under faults. `tick` follows its journals, and starts it again."""

    def __init__(
        self,
        folder: Path,
        services: Services,
        *,
        num_ranks: int,
        pace: float,
        max_seconds: float,
        rng: random.Random,
    ) -> None:
        """Start the run. `pace`: minimum seconds of a step. `max_seconds`: time after which a fault counts as one that
        the run has not recovered from."""
        self.folder, self.services, self.num_ranks, self.rng = folder, services, num_ranks, rng
        self.max_seconds = max_seconds
        self.disk = services.disk or folder / "disk"
        self.run, self.cache, self.armed = self.disk / "run", folder / "cache", folder / "armed"
        self.armed.mkdir()
        self.log, self.clock = folder / "job.log", folder / "clock"
        self.shift_clock(0)
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "LD_PRELOAD": str(services.library),
            "ARMED_FAULTS": str(self.armed),
            "CLOCK_OFFSET": str(self.clock),
        }
        self.environment.pop("PYTHONDONTWRITEBYTECODE", None)  # each start would compile the project again
        self.words = self.arguments(self.run, services.corpus, f"data.cache_dir={self.cache}")
        self.words += [f"callbacks={{'tests.faults.callback:Faults': {{seconds_per_step: {pace}}}}}"]
        if services.tracker:
            self.words += ["track.enabled=true", f"track.uri={services.tracker.uri}"]
        self.furthest, self.saved, self.resumed = 0, 0, 0
        """Last step of the run, of its newest checkpoint, and step from which it continued last."""
        self.losses: dict[int, list[tuple[int, float]]] = defaultdict(list)
        """Step -> number of faults before it, and loss; repeated steps have several."""
        self.signs: list[tuple[float, str]] = []
        """Events and lines of logs, with the time at which they were visible."""
        self.outcomes: list[Outcome] = []
        self._undo: tuple[float, Callable[[], object]] | None = None
        self._positions: dict[Path, int] = defaultdict(int)
        self._ready = False
        self._start()

    @property
    def s3(self) -> Any:
        return self.services.s3

    @property
    def tracker(self) -> Any:
        return self.services.tracker

    def arguments(self, run: Path, corpus: str, *overrides: str) -> list[str]:
        layout = (f"layout.data={self.num_ranks}", f"layout.microbatch={48 // self.num_ranks}")
        return ["train", *arguments("gpt2", run, corpus, *SETTINGS, *layout, *overrides)]

    # Faults

    def hit(self, kind: Kind) -> Outcome:
        """Make a fault, and wait until the run has recovered from it."""
        outcome = Outcome(kind.name, "", self.furthest)
        try:
            try:
                self._wait(lambda: self._ready)
                self.run_for(self.rng.uniform(0.0, 1.0))
            finally:
                self.outcomes.append(outcome)
            self._hit(kind, outcome)
        except RandomShardError as error:
            outcome.problem = str(error)
        except (PersonNeededError, TimeoutError) as error:
            outcome.problem = str(error)
            self._repair()
        return outcome

    def _hit(self, kind: Kind, outcome: Outcome) -> None:
        self.signs.clear()
        since = time.monotonic()
        fault = kind.make(self, self.rng)
        outcome.detail = fault.detail
        happened = (self.armed / f"{fault.armed}.done").exists
        if fault.armed is not None and not fault.kills:
            self._wait(happened)
            since = time.monotonic()
        outcome.step, saved, self._ready = self.furthest, self.saved, False
        self._undo = (since + fault.seconds, fault.undo)
        if kind.until == "restart":
            self._wait(lambda: self._seconds_until("resume", since) is not None)
            reached = self.furthest
            self._wait(lambda: self.furthest > reached)
        else:
            self._wait(lambda: self._undo is None)
            undone = self.furthest
            if kind.until == "checkpoint":
                self._wait(lambda: self.saved > saved)
            else:
                self._wait(lambda: self.furthest > undone + 1)
        outcome.recovered = time.monotonic() - since
        if kind.until != "restart":
            self._wait(lambda: self.furthest > undone + STEPS_AFTER)
        if kind.sign is not None:
            outcome.detected = self._seconds_until(kind.sign, since)
            if kind.until == "restart" and outcome.detected is None:
                outcome.problem = f"no {kind.sign}"
        if fault.armed is not None and not happened():
            outcome.problem = "the call did not happen"
            (self.armed / fault.armed).unlink(missing_ok=True)

    def arm(self, name: str, content: str) -> None:
        """Arm a fault, which a process then takes once."""
        (self.armed / f"{name}.done").unlink(missing_ok=True)
        new = self.folder / "new-fault"
        new.write_text(content)
        new.rename(self.armed / name)

    def shift_clock(self, seconds: int) -> None:
        """Shift the wall clock of all processes of the run."""
        before = struct.unpack("q", self.clock.read_bytes())[0] if self.clock.exists() else 0
        with self.clock.open("r+b" if self.clock.exists() else "wb") as file:  # mapped by the processes
            file.write(struct.pack("q", before + seconds))

    def processes_of(self, victim: str) -> list[psutil.Process]:
        """Return the processes of a role (launcher, rank, loader, all), once there are any."""
        self._wait(lambda: self._find_processes(victim))
        return self._find_processes(victim)

    def _find_processes(self, victim: str) -> list[psutil.Process]:
        try:
            launcher = psutil.Process(self.job.pid)
            children = launcher.children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        workers = [child for child in children if "megaptm.train.worker" in command_of(child)]
        ranks = parents_alone(workers)
        roles = {
            "launcher": [launcher],
            "rank": ranks,
            "loader": [process for process in workers if process not in ranks],
            "all": [launcher, *children],
        }
        return roles[victim]

    def newest_checkpoint(self) -> Path:
        return max(find_committed(self.run).items())[1]

    def _repair(self) -> None:
        """Let the run continue after a fault that it did not recover from, as a person would."""
        self._end()
        for path in self.armed.iterdir():
            path.unlink()
        self._start()

    def _end(self) -> None:
        """Undo the last fault, and kill the run."""
        if self._undo is not None:
            self._undo[1]()
            self._undo = None
        if self.job.poll() is None:
            send(self._find_processes("all"), signal.SIGKILL)
            self.job.wait()

    # Supervision

    def _start(self) -> None:
        with self.log.open("ab") as log:
            self.job = subprocess.Popen(
                [sys.executable, "-m", "megaptm", *self.words], env=self.environment, stdout=log, stderr=log, cwd=ROOT
            )

    def tick(self) -> None:
        """Read the journals and logs; undo a fault that is due; start the run again if it has ended."""
        self._read()
        if self._undo is not None and time.monotonic() > self._undo[0]:
            self._undo[1]()
            self._undo = None
        if (code := self.job.poll()) is not None:
            self.signs.append((time.monotonic(), "ended"))
            if code >= 0 and code != EXIT_CONTINUE:
                lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
                raise PersonNeededError(f"exit code {code}: {lines[-1]}")
            self._start()
        time.sleep(POLL_SECONDS)

    def run_for(self, seconds: float) -> None:
        """Follow the run for some seconds."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.tick()

    def stop(self) -> None:
        """Stop the run, which saves its last step."""
        self.job.send_signal(signal.SIGTERM)
        self.job.wait(self.max_seconds)
        self._read()

    def _wait(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + self.max_seconds
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not recovered in {self.max_seconds:.0f} s")
            self.tick()

    def _seconds_until(self, sign: str, since: float) -> float | None:
        """Return the seconds to a sign: the kind of an event, or words of a log line."""
        times = (at for at, each in self.signs if each == sign or (" " in sign and sign in each))
        return next((at - since for at in times if at > since), None)

    def _read(self) -> None:
        for path in (self.log, *self.run.glob("logs/rank-*.log")):
            self.signs += [(time.monotonic(), line) for line in self._new_lines(path)]
        for line in self._new_lines(self.run / "metrics.jsonl"):
            if (record := _parse(line)) and "loss" in record and record.get("step", 0) > 0:
                self.losses[record["step"]].append((len(self.outcomes), record["loss"]))
                self.furthest = max(self.furthest, record["step"])
        for line in self._new_lines(self.run / "events.jsonl"):
            if event := _parse(line):
                self._follow(event)

    def _follow(self, event: dict[str, Any]) -> None:
        self.signs.append((time.monotonic(), event.get("kind", "")))
        outcome = self.outcomes[-1] if self.outcomes else None
        match event.get("kind"):
            case "checkpoint":
                self._ready = event["step"] >= self.resumed + 2 * SAVE_EVERY  # a fault may damage the newest
                self.saved = event["step"]
            case "resume":
                self.resumed, self._ready = event["step"], False
                if outcome is not None:
                    outcome.steps_lost += max(0, self.furthest - event["step"])
            case "back":
                for step in [step for step in self.losses if step > event["step"]]:
                    del self.losses[step]  # of batches that are skipped
                if outcome is not None:
                    outcome.skipped += range(event["step"] + 1, event["from_step"] + 1)

    def _new_lines(self, path: Path) -> list[str]:
        """Return the complete lines of a file since the last call."""
        try:
            with path.open("rb") as file:
                file.seek(self._positions[path])
                content = file.read()
        except FileNotFoundError:
            return []
        complete = content[: content.rfind(b"\n") + 1]
        self._positions[path] += len(complete)
        return complete.decode(errors="replace").splitlines()

    # Comparison

    def compare(self) -> tuple[str, bool]:
        """Compare the run with one that was never disturbed and skips the same batches; return a summary, and whether
        they are equal.

        Outcomes of faults after which a loss differs get a problem.
        """
        last = max(find_committed(self.run))
        for step in [step for step in self.losses if step > last]:
            del self.losses[step]
        config = yaml.safe_load((self.run / "config.yaml").read_text(encoding="utf-8"))
        skips = json.dumps(config["train"].get("skip_batches") or {}).replace('"', "")
        reference = self.folder / "undisturbed"
        words = self.arguments(
            reference, str(self.services.folder), f"train.stop_at={last}", "checkpoint.every=1000000"
        )
        done = finish(*words, f"train.skip_batches={skips}", seconds=3600)
        if done.returncode != EXIT_CONTINUE:
            raise RuntimeError(f"the undisturbed run failed:\n{done.stderr}")
        expected = {step: values[-1] for step, values in losses(reference).items()}
        for step, values in self.losses.items():
            for number, loss in values:
                if expected.get(step) != loss and number:
                    problem = f"loss of step {step:,} differs: {loss}"
                    self.outcomes[number - 1].problem = self.outcomes[number - 1].problem or problem
        steps = {*range(1, last + 1)}
        checkpoints = [[file.sha256 for file in Store(run).load(last).files] for run in (self.run, reference)]
        are_equal = {
            "losses": all(loss == expected.get(step) for step, values in self.losses.items() for _, loss in values),
            "last checkpoint": checkpoints[0] == checkpoints[1],
            "steps in the journal": steps == {*self.losses},
            "steps in the tracker": not self.tracker or steps <= self._tracked_steps(),
        }
        repeated = sum(map(len, self.losses.values())) - last
        differing = ", ".join(name for name, is_equal in are_equal.items() if not is_equal)
        summary = f"{last:,} steps, {repeated:,} repeated; {differing or 'nothing'} differs from the undisturbed run"
        return summary, not differing

    def _tracked_steps(self) -> set[int]:
        """Return the steps whose losses are in the tracker, after sending those that the job could not send."""
        from mlflow import MlflowClient

        upload(self.run, uri=self.tracker.uri, experiment="megaptm")
        client = MlflowClient(tracking_uri=self.tracker.uri)
        [run] = client.search_runs([client.get_experiment_by_name("megaptm").experiment_id])
        return {point.step for point in client.get_metric_history(run.info.run_id, "loss")}

    def close(self) -> None:
        self._end()
        shutil.rmtree(self.run, ignore_errors=True)


def _parse(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
