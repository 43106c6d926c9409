"""Steps, checkpoints, losses and signs of faults in the journals and logs of a run, followed while it runs."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from megaptm.storage import parse_journal
from tests.faults.outcomes import Outcome

SAVE_EVERY = 10
"""Steps between two checkpoints."""


class History:
    """History of a run, which `read` extends."""

    def __init__(self, run: Path, log: Path) -> None:
        self._run, self._log = run, log
        self.furthest, self.saved, self.resumed = 0, 0, 0
        """Last step of the run, of its newest checkpoint, and step from which it continued last."""
        self.is_ready = False
        """Whether the run has saved since the last fault, and twice since its start: a fault may damage the newest."""
        self.fault: Outcome | None = None
        """The last fault."""
        self.losses: dict[int, list[tuple[Outcome | None, float]]] = defaultdict(list)
        """Step -> loss, with the fault before it; repeated steps have several."""
        self.skips: dict[int, int] = {}
        """Step -> number of batches that are skipped before the next, according to the events."""
        self.save_seconds: list[float] = []
        """Seconds from the end of a step to the commit of its checkpoint."""
        self.signs: list[tuple[float, str]] = []
        """Events and lines of logs since the last fault, with the time at which they were visible."""
        self._positions: dict[Path, int] = defaultdict(int)

    def seconds_until(self, sign: str, since: float) -> float | None:
        """Return the seconds to a sign: the kind of an event, or words of a log line."""
        times = (at for at, each in self.signs if each == sign or (" " in sign and sign in each))
        return next((max(0.0, at - since) for at in times), None)

    def add_sign(self, sign: str) -> None:
        self.signs.append((time.monotonic(), sign))

    def read(self) -> None:
        for path in (self._log, *self._run.glob("logs/rank-*.log")):
            for line in self._new_lines(path).decode(errors="replace").splitlines():
                self.add_sign(line)
        for record in parse_journal(self._new_lines(self._run / "metrics.jsonl")):
            if "loss" in record and record.get("step", 0) > 0:
                self.losses[record["step"]].append((self.fault, record["loss"]))
                self.furthest = max(self.furthest, record["step"])
        for event in parse_journal(self._new_lines(self._run / "events.jsonl")):
            self._follow(event)

    def _follow(self, event: dict[str, Any]) -> None:
        self.add_sign(event["kind"])
        match event["kind"]:
            case "checkpoint":
                self.is_ready = event["step"] >= self.resumed + 2 * SAVE_EVERY
                self.saved = event["step"]
                self.save_seconds.append(event["seconds"])
            case "resume":
                self.resumed, self.is_ready = event["step"], False
                if self.fault is not None:
                    self.fault.steps_lost += max(0, self.furthest - event["step"])
            case "back":
                for step in [step for step in self.losses if step > event["step"]]:
                    del self.losses[step]  # of batches that are skipped
                self.skips[event["step"]] = event["skip"]
                if self.fault is not None:
                    self.fault.skipped.append(event["samples"])

    def _new_lines(self, path: Path) -> bytes:
        """Return the complete lines of a file since the last call."""
        try:
            with path.open("rb") as file:
                file.seek(self._positions[path])
                content = file.read()
        except FileNotFoundError:
            return b""
        complete = content[: content.rfind(b"\n") + 1]
        self._positions[path] += len(complete)
        return complete
