"""Journals of a run: JSON objects, one per line, each with a `time`. Any number of processes may append."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from megaptm.storage.safe_files import safe_open

MAX_NUMBER = 1e30
TAIL_BYTES = 1 << 16
"""Bytes at the end of a journal that are searched for the time of its last line."""
MAX_CLOCK_ERROR = 366 * 86400.0
"""Maximum seconds that a time in a journal may lie in the future; later times are ignored as invalid."""

# CLOCK_BOOTTIME is monotonic and, unlike CLOCK_MONOTONIC, includes the time that a laptop is suspended.
_uptime_clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_epoch_offset = time.time() - time.clock_gettime(_uptime_clock)


def now() -> float:
    """Return the current time for a journal, seconds since 1970. It never decreases, even if the system clock is set
    back, nor below times of an open journal."""
    return time.clock_gettime(_uptime_clock) + _epoch_offset


def _advance_clock_to(min_time: float) -> None:
    """Make `now` at least `min_time`, if the system clock was set back. Implausible times are ignored."""
    global _epoch_offset
    if 0 < (behind := min_time - now()) < MAX_CLOCK_ERROR:
        _epoch_offset += behind


class JournalFile:
    """Writer of a journal, which appends lines with one write each, so that a killed process leaves at most its last
    line incomplete.

    A line that cannot be written (full disk) is kept in memory and written before the next one. Several threads may
    append: training writes events and metrics, and so does the thread that commits a checkpoint.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = safe_open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._unwritten: list[bytes] = []
        self._lock = threading.Lock()
        size = os.fstat(self._file).st_size
        for record in parse_journal(os.pread(self._file, TAIL_BYTES, max(0, size - TAIL_BYTES))):
            _advance_clock_to(record["time"])

    def append(self, record: Mapping[str, Any]) -> None:
        """Append one line to the journal after any unwritten ones; raise `OSError` if it cannot be written now.

        Adds the time. Paths become strings, as do infinity and NaN, which JSON lacks.
        """
        line = {key: str(value) if _is_nonfinite(value) else value for key, value in record.items()}
        with self._lock:
            self._unwritten.append(json.dumps({"time": round(now(), 6), **line}, default=str).encode() + b"\n")
            self._write_lines()

    def _write_lines(self) -> None:
        """Write the unwritten lines of the journal; raise `OSError` if that fails. The caller holds the lock."""
        while self._unwritten:
            line = self._unwritten[0]
            separator = b"\n" if self._ends_incomplete() else b""
            # A partial write means a full disk. The next attempt ends the incomplete line and raises the error.
            if os.write(self._file, separator + line) == len(separator + line):
                del self._unwritten[0]

    def close(self) -> None:
        """Close the journal's file; raise `OSError` if a line still cannot be written."""
        with self._lock:
            try:
                self._write_lines()
            finally:
                os.close(self._file)

    def _ends_incomplete(self) -> bool:
        """Whether the last line of the journal is incomplete, so that the next one must not be appended to it."""
        size = os.fstat(self._file).st_size
        return size > 0 and os.pread(self._file, 1, size - 1) != b"\n"


def parse_journal(content: bytes) -> Iterator[dict[str, Any]]:
    """Yield the objects of a journal that have a `time`. Lines truncated by a crash are skipped."""
    for line in content.splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and is_finite_number(record.get("time")):
            yield record


def is_finite_number(value: Any) -> TypeGuard[float]:
    """Whether a JSON value is a finite number, not a bool, and small enough to be summed."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MAX_NUMBER


def _is_nonfinite(value: Any) -> bool:
    """Whether a JSON value is infinity or NaN."""
    return isinstance(value, float) and not math.isfinite(value)


def is_number_or_nan(value: Any) -> TypeGuard[float]:
    """Whether a JSON value is a number that fits into a float, or infinity or NaN."""
    return is_finite_number(value) or _is_nonfinite(value)
