"""Times as Slurm writes them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from megaptm.errors import UserError
from megaptm.schedulers.slurm.options import option

FORM = re.compile(r"(?:(?P<days>\d+)-)?(?P<rest>\d+(?::\d+){0,2})")
WARNING_SECONDS = 900.0
"""Before the limit of a job its processes are told to save, unless --signal says otherwise (`launch.slurm.script`)."""


def seconds_of(limit: str) -> float:
    """`90` (minutes), `30:00`, `24:00:00`, `2-12`, `2-12:30`, `2-12:30:00`; `UNLIMITED` is infinite."""
    if limit.upper() in ("UNLIMITED", "INFINITE"):
        return float("inf")
    match = FORM.fullmatch(limit.strip())
    if match is None:
        raise UserError(f"--time {limit} is no time: write minutes (90), H:M:S (24:00:00) or D-H (2-12).")
    numbers = [int(word) for word in match["rest"].split(":")]
    if match["days"] is not None:
        numbers = [*numbers, 0, 0][:3]
    elif len(numbers) < 3:
        numbers = [0, *numbers, 0][:3]
    hours, minutes, seconds = numbers
    total = ((int(match["days"] or 0) * 24 + hours) * 60 + minutes) * 60.0 + seconds
    if not total:
        raise UserError(f"--time {limit}: a job needs some time.")
    return total


def warning_seconds(options: Sequence[str]) -> float:
    """How long before its limit a job is told."""
    signal = option(options, "signal") or ""
    _, at, seconds = signal.partition("@")
    return float(seconds) if at and seconds.isdigit() else WARNING_SECONDS


def words(seconds: float) -> str:
    """`3 ms`, `90 s`, `25 min`, `5.1 h`, `2.5 days`."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:,.1f}".removesuffix(".0") + " s"
