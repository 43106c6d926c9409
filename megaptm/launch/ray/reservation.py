"""Reservation of devices on the cluster, at once or when they become available."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from megaptm.config import Layout
from megaptm.launch.ray.placement import RankAssignment, place
from megaptm.schedulers.ray.cluster import nodes

RESERVE_SECONDS = 30.0
POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Reservation:
    """Devices reserved for all ranks of a layout."""

    layout: Layout
    assignments: list[RankAssignment]
    kind: str
    group: Any
    """Placement group with one bundle per assignment, in order."""

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *exc: object) -> None:
        _remove(self.group)


def reserve(layout: Layout, *, seconds: float, given_up: Callable[[], object] = lambda: False) -> Reservation | None:
    """Reserve devices within `seconds`; return None if there are not enough."""
    deadline = time.monotonic() + seconds
    if (found := _take(layout)) or seconds <= 0:
        return found
    with _demand(layout) as met:
        while not met():
            if given_up() or time.monotonic() > deadline:
                return None
            time.sleep(POLL_SECONDS)
            if found := _take(layout):
                return found
    # Devices that met the demand become free shortly after the demand is removed.
    until = time.monotonic() + RESERVE_SECONDS
    while not (found := _take(layout)) and time.monotonic() < until and not given_up():
        time.sleep(POLL_SECONDS)
    return found


def _take(layout: Layout) -> Reservation | None:
    kind, there = nodes()
    assignments = place(there, layout)
    if assignments is None:
        return None
    group = _group(
        [{kind: len(assignment.ranks)} for assignment in assignments],
        [assignment.node.id for assignment in assignments],
    )
    if group.wait(RESERVE_SECONDS):
        return Reservation(layout, assignments, kind, group)
    _remove(group)  # another job was faster, or a node is gone
    return None


@contextmanager
def _demand(layout: Layout) -> Iterator[Callable[[], bool]]:
    """Report the missing devices to the autoscaler while the context is open.

    In units of a tensor group, which nodes of any size can satisfy. By a placement group, which ends with this process;
    the autoscaler's own request would keep nodes running afterwards.
    """
    kind, _ = nodes()
    group = _group([{kind: layout.tensor}] * (layout.processes // layout.tensor))
    try:
        yield lambda: group.wait(0)
    finally:
        _remove(group)


def _group(bundles: Sequence[dict[str, float]], ids: Sequence[str] = ()) -> Any:
    from ray.util.placement_group import placement_group

    labels = [{"ray.io/node-id": one} for one in ids]
    return placement_group(list(bundles), strategy="PACK", bundle_label_selector=labels or None)


def _remove(group: Any) -> None:
    from ray.util.placement_group import remove_placement_group

    remove_placement_group(group)
