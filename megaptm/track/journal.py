"""`run/metrics.jsonl`, the run's own record: whatever becomes of the tracking server, nothing is lost.

A line is one of

    {"time": seconds since 1970, "step": 10, "loss": 3.2, ...}     metrics; inf and nan are strings, JSON has neither
    {"time": ..., "params": {"layout.data": 2, ...}}
    {"time": ..., "artifact": "report/loss.png"}                   a file in the run folder
    {"time": ..., "status": "RUNNING"}                             what training does from now on, in MLflow's words
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megaptm.storage import JournalFile, is_not_finite, is_number, journal_lines

FILE = "metrics.jsonl"


class Journal(JournalFile):
    """The run's metrics, to be appended to."""

    def __init__(self, run: Path) -> None:
        self.path = run / FILE
        super().__init__(self.path)

    def add(self, record: Mapping[str, Any]) -> None:
        self.append({"time": round(time.time(), 3), **record})


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The metrics of a run, in the order written: dictionaries with `time`, `step` and the numbers of that step.

    A step done again after a restart is there again; the later record is the one that counts.
    """
    path = Path(run) / FILE
    if not path.exists():
        return []
    records = (parsed(line) for line in path.read_bytes().splitlines())
    return [_numbers(record) for record in records if record is not None and is_number(record.get("step"))]


def _numbers(record: dict[str, Any]) -> dict[str, Any]:
    """What of a record is a number: infinities and NaN, too."""
    return {key: value for key, value in record.items() if is_number(value) or is_not_finite(value)}


def parsed(line: bytes) -> dict[str, Any] | None:
    """One line, or None for one that a crash tore."""
    record = next(journal_lines(line), None)
    if record is None:
        return None
    return {
        key: float(value) if isinstance(value, str) and value in ("inf", "-inf", "nan") else value
        for key, value in record.items()
    }
