"""Marks in the curves of a run: restarts, changes, failures, stops and spikes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from megaptm.errors import printable
from megaptm.storage import is_finite_number

KINDS = {
    **dict.fromkeys(("resume", "branch", "back"), "restart"),
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
    returns = [event for event in events if event["kind"] == "back" and is_finite_number(event.get("step"))]
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
        kind, text = KINDS[event["kind"]], printable(_describe_event(event))[:MAX_TEXT]
        at = int(step or 0)
        later = (int(back["step"]) for back in returns if back["time"] > event["time"] and back["step"] <= at)
        if kind == "change" and (back_step := next(later, None)) is not None:
            text += f"; undone by the return to step {back_step}"
        marks.append(Mark(at, kind, text))
    return sorted(marks, key=lambda mark: mark.step)


def _describe_event(event: Mapping[str, Any]) -> str:
    """Return an event as text: its kind and what it records, `change: optimizer.lr 0.1 -> 0.05`."""
    facts = dict(event)
    title, parts = str(facts.pop("kind")), []
    match title:
        case "resume":
            title = "resume from a checkpoint"
            facts.pop("checkpoint", None)
        case "back":
            title = f"return from step {facts.pop('from_step', '?')}"
            parts = [f"{skip} batches of text skipped"] if (skip := facts.pop("skip", 0)) else []
        case "schedule":
            title = "another schedule"
            parts = [f"learning rate {_shown(facts.pop('rate_before', '?'))} -> {_shown(facts.pop('rate_after', '?'))}"]
        case "spike":
            parts = [str(facts.pop("description", "?")), *(["skipped"] if facts.pop("skipped", False) is True else [])]
    before, after = facts.pop("before", None), facts.pop("after", None)
    parts += [
        f"{name} {_shown(value)}" for name, value in facts.items() if name not in HIDDEN and value not in (None, [], {})
    ]
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        sides = {key: (before.get(key), after.get(key)) for key in {**before, **after}}
        parts += [f"{key} {old} -> {new}" for key, (old, new) in sides.items() if old != new]
    elif before is not None:
        parts.append(f"{before} -> {after}")
    return ": ".join([title, ", ".join(parts)]) if parts else title


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
