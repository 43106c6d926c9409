"""The run's journal, `run/events.jsonl`: one line for everything that happens to a run, whoever writes it."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from megaptm.checkpoint.committed import committed

FILE = "events.jsonl"

# Every line has `time` (seconds since 1970), `kind` and the fields named here. A kind that is not here is an error, so
# that this table stays the whole truth for whoever reads the journal.
KINDS = {
    "launch": "the command started: command, version, host, pid",
    "import": "the run was made from a model of another library, its step 0: source, parameters",
    "start": "training begins at step 0: parameters, layout, processes",
    "resume": "training continues: step, checkpoint, seconds (taken by loading), layout, processes",
    "first-step": "the first step since the start or resume is done: step, seconds (since the command started)",
    "checkpoint": "a checkpoint is committed: step, bytes, seconds (from the end of the step, training or not)",
    "damaged-checkpoint": "a checkpoint does not match its hashes and is passed over: step, problem, kept",
    "stop-signal": "the run was asked to stop: signal",
    "worker-lost": "a worker process ended before its time: rank, code, problem",
    "node-lost": "a machine was lost while it had ranks of the run: node, ranks",
    "restart": "the launcher starts the run once more: start (how manieth), layout, processes",
    "evaluation": "the model was measured on held-out text: step, rows, loss",
    "exit": "training ends: code, and the seconds spent by kind",
}

BEGINNINGS = ("launch", "restart")
"""Kinds with which a job begins: the time from there to the first step is its start-up."""


class Events:
    """Appends to the journal. Several processes may: each line is one write at the end of the file.

    `fence` is called before each, and raises where the run has become another job's.
    """

    def __init__(self, run: Path, *, fence: Callable[[], None] | None = None) -> None:
        self._fence = fence
        path = Path(run) / FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._end_torn_line()

    def write(self, kind: str, **fields: Any) -> None:
        """Add one event. Paths become text; infinities and NaN too, since JSON has none."""
        if kind not in KINDS:
            raise AssertionError(f"unknown kind of event {kind!r}: add it to megaptm.resilience.events.KINDS")
        if self._fence is not None:
            self._fence()
        line = {"time": round(time.time(), 6), "kind": kind}
        line |= {key: str(value) if _not_finite(value) else value for key, value in fields.items()}
        os.write(self._file, json.dumps(line, default=str).encode() + b"\n")

    def _end_torn_line(self) -> None:
        """A process killed in mid-write leaves half a line: end it, or the next event would be lost with it."""
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def read_events(run: Path) -> list[dict[str, Any]]:
    """All events of a run in the order written; lines torn by a crash are left out, no journal means no events."""
    path = Path(run) / FILE
    if not path.exists():
        return []
    events = []
    for line in path.read_bytes().splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and "kind" in event:
            events.append(event)
    return events


def last_saved(run: Path) -> int:
    """The newest step of any checkpoint; 0 before the first.

    A job may be killed between committing one and writing that down: what lies there counts as well.
    """
    written = (event["step"] for event in read_events(run) if event["kind"] == "checkpoint")
    return max([*written, *committed(run)], default=0)


def _not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
