"""Journals: JSON objects, one a line, each with a `time`; only ever appended to, by any number of processes."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

MOST_NUMBER = 1e30


class JournalFile:
    """Appends lines, each in one write, so that a killed process leaves at most its last line torn."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._end_torn_line()

    def append(self, record: Mapping[str, Any]) -> None:
        """One line. Paths become text; infinities and NaN too, since JSON has none."""
        line = {key: str(value) if is_not_finite(value) else value for key, value in record.items()}
        os.write(self._file, json.dumps(line, default=str).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)

    def _end_torn_line(self) -> None:
        """Else the next record would be lost with it."""
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")


def journal_lines(content: bytes) -> Iterator[dict[str, Any]]:
    """The objects with a `time`; lines torn by a crash are left out."""
    for line in content.splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and is_number(record.get("time")):
            yield record


def is_number(value: Any) -> bool:
    """A finite number, no truth value, that any sum can take."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MOST_NUMBER


def is_not_finite(value: Any) -> bool:
    """An infinity, or NaN."""
    return isinstance(value, float) and not math.isfinite(value)
