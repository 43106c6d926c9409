"""Marks in the curves of a run: restarts, changes, failures, stops and spikes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from megaptm.errors import printable
from megaptm.storage import is_finite_number

KINDS = {
    **dict.fromkeys(("resume", "branch", "back", "abandoned-checkpoint"), "restart"),
    **dict.fromkeys(("change", "schedule", "objective", "weights", "data-moved", "epoch"), "change"),
    **dict.fromkeys(
        ("hang", "worker-lost", "node-lost", "node-excluded", "not-saved", "skipped-step", "straggler", "gpu-fault"),
        "failure",
    ),
    "damaged-checkpoint": "failure",
    "spike": "spike",
    **dict.fromkeys(("stop-request", "stop-signal", "interrupt"), "stop"),
}
"""Kinds of marks in the curves of a run, by kind of event. Other events have no mark."""
HIDDEN = ("time", "kind", "step", "layout", "processes", "seconds", "stack", "path")
"""Fields of events that the text of a mark leaves out."""
MAX_TEXT = 300


@dataclass(frozen=True)
class Mark:
    """Mark at a step of a run's curves."""

    step: int
    kind: str
    text: str


def find_marks(events: Sequence[Mapping[str, Any]], records: Sequence[Mapping[str, Any]]) -> list[Mark]:
    """Return the marks of a run in order of steps. An event without a step is at the last step recorded before it."""
    by_time = sorted((record["time"], record["step"]) for record in records)
    times = [time for time, _ in by_time]
    marks = []
    for event in events:
        if event["kind"] not in KINDS:
            continue
        step = event.get("step")
        if not is_finite_number(step):
            before = bisect_right(times, event["time"])
            step = by_time[before - 1][1] if before else 0
        marks.append(Mark(int(step or 0), KINDS[event["kind"]], printable(_describe_event(event))[:MAX_TEXT]))
    return sorted(marks, key=lambda mark: mark.step)


def _describe_event(event: Mapping[str, Any]) -> str:
    """Return an event as text: its kind and what it records, `change: optimizer.lr 0.1 -> 0.05`."""
    facts = dict(event)
    before, after = facts.pop("before", None), facts.pop("after", None)
    parts = [
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in facts.items()
        if name not in HIDDEN and value not in (None, [], {})
    ]
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        sides = {key: (before.get(key), after.get(key)) for key in {**before, **after}}
        parts += [f"{key} {old} -> {new}" for key, (old, new) in sides.items() if old != new]
    elif before is not None:
        parts.append(f"{before} -> {after}")
    return ": ".join([str(event["kind"]), ", ".join(parts)]) if parts else str(event["kind"])
