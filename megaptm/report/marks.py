"""Marks in the curves of a run: restarts, changes, failures, stops and spikes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from megaptm.errors import printable
from megaptm.report.curves import curve
from megaptm.storage import is_finite_number

KINDS = {
    **dict.fromkeys(("resume", "branch", "back"), "restart"),
    **dict.fromkeys(("change", "schedule", "objective", "weights", "data-moved", "epoch"), "change"),
    **dict.fromkeys(("hang", "worker-lost", "node-lost", "not-saved", "skipped-step"), "failure"),
    **dict.fromkeys(("damaged-checkpoint", "abandoned-checkpoint"), "failure"),
    "spike": "spike",
    **dict.fromkeys(("stop-request", "stop-signal", "interrupt"), "stop"),
}
"""Kinds of marks in the curves of a run, by kind of event. Other events have no mark."""
HIDDEN = ("time", "kind", "step", "layout", "processes", "seconds", "stack", "path")
"""Fields of events that the text of a mark leaves out."""
MAX_TEXT = 300
WINDOW = 50
"""Number of recorded losses before a step with which its loss is compared."""
MIN_DEVIATIONS, MIN_SHARE = 8.0, 0.05
"""A spike exceeds the median of the window by as many median absolute deviations, and by this share of the median."""
MAX_SPIKES = 20


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
    known = {mark.step for mark in marks if mark.kind == "spike"}  # found by the run itself (train.spikes)
    spikes = (spike for spike in find_spikes(curve(records, "loss")) if spike.step not in known)
    return sorted([*marks, *spikes], key=lambda mark: mark.step)


def _describe_event(event: Mapping[str, Any]) -> str:
    """Return an event as text: its kind and what it records, `change: optimizer.lr 0.1 -> 0.05`."""
    facts = dict(event)
    before, after = facts.pop("before", None), facts.pop("after", None)
    parts = [f"{name} {value}" for name, value in facts.items() if name not in HIDDEN]
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        sides = {key: (before.get(key), after.get(key)) for key in {**before, **after}}
        parts += [f"{key} {old} -> {new}" for key, (old, new) in sides.items() if old != new]
    elif before is not None:
        parts.append(f"{before} -> {after}")
    return ": ".join([str(event["kind"]), ", ".join(parts)]) if parts else str(event["kind"])


def find_spikes(points: Sequence[tuple[float, float]]) -> Iterator[Mark]:
    """Yield the spikes of a loss curve, the highest `MAX_SPIKES`: first steps whose loss is far above the losses before
    them."""
    if len(points) <= WINDOW:
        return
    steps, losses = np.array(points).T
    windows = np.lib.stride_tricks.sliding_window_view(losses[:-1], WINDOW)
    with np.errstate(invalid="ignore"):  # infinite losses
        medians = np.median(windows, axis=1)
        deviations = np.median(np.abs(windows - medians[:, None]), axis=1)
        excess = losses[WINDOW:] - medians
        is_high = excess > np.maximum(MIN_DEVIATIONS * deviations, MIN_SHARE * np.abs(medians))
    starts = np.flatnonzero(is_high & ~np.concatenate([[False], is_high[:-1]]))
    for at in sorted(starts[np.argsort(-excess[starts], kind="stable")][:MAX_SPIKES]):
        text = f"spike: loss {losses[at + WINDOW]:.4g}, median of the {WINDOW} before {medians[at]:.4g}"
        yield Mark(int(steps[at + WINDOW]), "spike", text)
