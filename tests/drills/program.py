"""`megaptm train` in its own process, with models so small that most of the time is start-up."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from megaptm.resilience.events import read_events
from megaptm.track import read_metrics
from tests import ROOT

TIMEOUT_SECONDS = 240.0
SMALL = (
    *("model.width=32", "model.heads=2", "model.ffn=64", "model.vocabulary=512", "model.context=32"),
    *("data.sequence=32", "train.batch=12", "layout.microbatch=3", "train.log_every=1", "train.validate_batches=1"),
    *(
        "train.threads=1",
        "track.enabled=false",
        "optimizer.lr=1e-3",
        "optimizer.max_warmup_ratio=null",
        "checkpoint.every=1000",
        "train.restarts=0",
    ),
)


def arguments(family: str, run: Path, corpus: Path | str, *overrides: str) -> list[str]:
    """Return arguments of `megaptm train`."""
    config = ROOT / f"configs/{family}/tiny.yaml"
    return [str(config), f"run={run}", f"data.mix={{{corpus}: 1}}", *SMALL, *overrides]


def start(*words: str) -> subprocess.Popen[str]:
    """Start `megaptm WORDS` in the background."""
    return subprocess.Popen(
        [sys.executable, "-m", "megaptm", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(*words: str, seconds: float = TIMEOUT_SECONDS) -> subprocess.CompletedProcess[str]:
    """Run `megaptm WORDS` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "megaptm", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )


def wait_for(
    condition: Callable[[], Any],
    program: subprocess.Popen[str],
    *,
    every: float = 0.01,
    seconds: float = TIMEOUT_SECONDS,
) -> Any:
    """Return the first truthy result of `condition` while the program runs."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        if program.poll() is not None:
            raise AssertionError(f"it ended early with {program.returncode}: {program.communicate()}")
        if time.monotonic() > deadline:
            program.kill()
            raise AssertionError(f"nothing in {seconds:.0f} s: {program.communicate()}")
        time.sleep(every)
    return result


def last_step(run: Path) -> int:
    """Return the newest step in the run's metrics; 0 before the first."""
    return max((record["step"] for record in read_metrics(run) if "loss" in record), default=0)


def losses(run: Path) -> dict[int, list[float]]:
    """Return step -> losses. A step has several if it was repeated after a kill."""
    by_step: dict[int, list[float]] = {}
    for record in read_metrics(run):
        if "loss" in record:
            by_step.setdefault(record["step"], []).append(record["loss"])
    return by_step


def resumed_at(run: Path) -> list[int]:
    """Return the steps at which jobs continued the run."""
    return [event["step"] for event in read_events(run) if event["kind"] == "resume"]


def checkpoints(run: Path) -> list[int]:
    """Return committed steps in order."""
    return sorted(
        int(path.name.removeprefix("step-"))
        for path in (run / "checkpoints").glob("step-*")
        if not path.suffix and (path / "manifest.json").exists()
    )


def family_of(program: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return all descendants of a program: ranks and their loader workers."""
    return psutil.Process(program.pid).children(recursive=True)
