"""Traces of torch's profiler (Chrome's JSON): the work of a GPU, and the share of time in which it had none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of GPU work in a profiler trace. Annotations have other categories, and include time in which the GPU
waits."""
STEP_NAME = "megaptm step"
"""Name of the span of a training step in a profiler trace, followed by the step's number."""


@dataclass(frozen=True)
class TraceSpan:
    """Event of a profiler trace, in microseconds."""

    name: str
    start: float
    end: float


def gpu_work(trace: Mapping[str, Any]) -> list[TraceSpan]:
    """Return the kernels and copies of a profiler trace."""
    return list(_complete_spans(event for event in trace["traceEvents"] if event.get("cat") in GPU_CATEGORIES))


def traced_steps(trace: Mapping[str, Any]) -> list[TraceSpan]:
    """Return the spans of training steps on the host in a profiler trace."""
    events = (event for event in trace["traceEvents"] if event.get("cat") == "user_annotation")
    return [span for span in _complete_spans(events) if span.name.startswith(STEP_NAME)]


def _complete_spans(events: Iterable[Mapping[str, Any]]) -> Iterator[TraceSpan]:
    for event in events:
        if event.get("ph") == "X":
            yield TraceSpan(str(event["name"]), event["ts"], event["ts"] + event["dur"])


def gpu_idle_share(trace: Mapping[str, Any]) -> float | None:
    """Return the share of time in which no kernel and no copy ran on the GPU, during the traced steps and between them.
    None without a GPU.

    The profiler slows the host, so this is an upper limit for steps that are bound by the host.
    """
    work, steps = gpu_work(trace), traced_steps(trace)
    if not work or not steps:
        return None
    start = min(step.start for step in steps)
    end = max(max(step.end for step in steps), max(span.end for span in work))
    return 1.0 - busy_time(work, start=start) / (end - start)


def busy_time(work: Iterable[TraceSpan], *, start: float) -> float:
    """Return the time after `start` that at least one span of a trace covers; kernels of several streams overlap."""
    busy, covered = 0.0, start
    for span in sorted(work, key=lambda span: span.start):
        busy += max(0.0, span.end - max(span.start, covered))
        covered = max(covered, span.end)
    return busy
