"""Rounds in which contenders take turns, because machines are noisy."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

from common.peer_process import PeerStep


def median_seconds(
    contenders: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Return the seconds of one call of each contender, after a warm-up call."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for step in contenders.values():
        step()
    for _ in range(rounds):
        for name, step in contenders.items():
            times[name].append(_seconds(step, clock))
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def _seconds(step: Callable[[], object], clock: Callable[[], float]) -> float:
    if isinstance(step, PeerStep):
        return step.seconds(clock)
    started = clock()
    step()
    return clock() - started
