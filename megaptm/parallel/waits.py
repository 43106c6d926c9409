"""Time that this rank spends in collectives, which is mostly the time that it waits for other ranks.

All collectives of Python code go through methods of `ProcessGroup` and `Work`, which are replaced by timed ones:
megatron-core calls them from many places. On a GPU the marks are CUDA events on the stream that waits. They are read
after the host has waited for the step anyway, so a measurement adds no synchronization.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

COLLECTIVES = (
    *("allreduce", "allreduce_coalesced", "broadcast", "reduce", "barrier", "send", "recv", "recv_anysource"),
    *("allgather", "_allgather_base", "all_gather_single", "allgather_coalesced", "allgather_into_tensor_coalesced"),
    *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_tensor_coalesced"),
    *("gather", "scatter", "alltoall", "alltoall_base", "all_to_all_single"),
)
"""Methods of `ProcessGroup` that communicate, as far as the installed torch has them. With gloo, and if they are
asynchronous, they return at once, and `Work.wait` waits."""

TimeMark = Any
"""Point in time of a step: seconds on a CPU, a CUDA event on a GPU."""


class StepClock:
    """Clock of one step of this rank, which measures the time in collectives apart from the rest."""

    running: StepClock | None = None
    """Clock of the present step, if it is measured."""

    def __init__(self) -> None:
        self._waits: list[tuple[TimeMark, TimeMark]] = []

    def __enter__(self) -> StepClock:
        _time_collectives()
        StepClock.running = self
        self._start = self._end = _mark()
        return self

    def __exit__(self, *exc: object) -> None:
        StepClock.running = None
        self._end = _mark()

    def add_wait(self, start: TimeMark) -> None:
        """Add the time since `start` as a wait."""
        self._waits.append((start, _mark()))

    def read_work_seconds(self) -> float:
        """Return the seconds of the step outside of collectives; NaN if the GPU has not finished the step."""
        marks = [self._end, *(end for _, end in self._waits)]
        if not all(mark.query() for mark in marks if isinstance(mark, torch.cuda.Event)):
            return math.nan
        return _seconds(self._start, self._end) - sum(_seconds(*wait) for wait in self._waits)


def _mark() -> TimeMark:
    if not torch.cuda.is_available():
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _seconds(start: TimeMark, end: TimeMark) -> float:
    if isinstance(start, float):
        return float(end - start)
    return float(start.elapsed_time(end)) / 1000


@functools.cache
def _time_collectives() -> None:
    """Replace the methods that communicate by timed ones, once in a process."""
    for name in COLLECTIVES:
        if hasattr(dist.ProcessGroup, name):
            setattr(dist.ProcessGroup, name, _timed(getattr(dist.ProcessGroup, name)))
    dist.Work.wait = _timed(dist.Work.wait)  # type: ignore[method-assign]


def _timed(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        if (clock := StepClock.running) is None:
            return method(*args, **options)
        start = _mark()
        try:
            return method(*args, **options)
        finally:
            clock.add_wait(start)

    return call
