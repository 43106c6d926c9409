"""Times in Slurm's formats."""

from __future__ import annotations

import re
from collections.abc import Sequence

from megaptm.errors import UserError
from megaptm.schedulers.slurm.options import sbatch_option_value

FORMAT = re.compile(r"(?:(?P<days>\d+)-)?(?P<clock>\d+(?::\d+){0,2})")
WARNING_SECONDS = 900.0
"""Seconds before a job's time limit at which its processes are signaled to save, unless --signal sets another value
(`launch.slurm.script`)."""


def parse_slurm_time(limit: str) -> float:
    """Return the seconds of a time in Slurm's format: `90` (minutes), `30:00`, `24:00:00`, `2-12`, `2-12:30` or
    `2-12:30:00`; `UNLIMITED` is infinite."""
    if limit.upper() in ("UNLIMITED", "INFINITE"):
        return float("inf")
    match = FORMAT.fullmatch(limit.strip())
    if match is None:
        raise UserError(f"--time {limit} is not a time: write minutes (90), H:M:S (24:00:00) or D-H (2-12).")
    numbers = [int(part) for part in match["clock"].split(":")]
    if match["days"] is not None:
        numbers = [*numbers, 0, 0][:3]
    elif len(numbers) < 3:
        numbers = [0, *numbers, 0][:3]
    hours, minutes, seconds = numbers
    total = ((int(match["days"] or 0) * 24 + hours) * 60 + minutes) * 60.0 + seconds
    if not total:
        raise UserError(f"--time {limit}: a job needs more than 0 seconds.")
    return total


def warning_seconds(options: Sequence[str]) -> float:
    """Return how many seconds before its time limit a Slurm job is signaled to save."""
    signal = sbatch_option_value(options, "signal") or ""
    _, at, seconds = signal.partition("@")
    return float(seconds) if at and seconds.isdigit() else WARNING_SECONDS


def format_seconds(seconds: float) -> str:
    """Format a duration with its unit: `3 ms`, `90 s`, `25 min`, `5.1 h`, `2.5 days`."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:,.1f}".removesuffix(".0") + " s"
