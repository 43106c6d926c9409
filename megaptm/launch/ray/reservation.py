"""Reservation of devices on the cluster, at once or when they become available."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from megaptm.config import Layout
from megaptm.launch.ray.placement import RankAssignment, assign_ranks
from megaptm.schedulers.ray.cluster import alive_nodes

RESERVE_SECONDS = 30.0
POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Reservation:
    """Devices reserved for all ranks of a layout."""

    layout: Layout
    assignments: list[RankAssignment]
    kind: str
    group: Any
    """Ray's placement group, with one bundle for each of `assignments`, in the same order."""

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *exc: object) -> None:
        _remove_group(self.group)


def reserve_devices(
    layout: Layout, *, seconds: float, should_stop: Callable[[], object] = lambda: False
) -> Reservation | None:
    """Reserve devices of the Ray cluster within `seconds`; return None if there are not enough."""
    deadline = time.monotonic() + seconds
    if (reservation := _try_reserve(layout)) or seconds <= 0:
        return reservation
    with _autoscaler_demand(layout) as is_met:
        while not is_met():
            if should_stop() or time.monotonic() > deadline:
                return None
            time.sleep(POLL_SECONDS)
            if reservation := _try_reserve(layout):
                return reservation
    # Devices that met the demand become free shortly after the demand is removed.
    until = time.monotonic() + RESERVE_SECONDS
    while not (reservation := _try_reserve(layout)) and time.monotonic() < until and not should_stop():
        time.sleep(POLL_SECONDS)
    return reservation


def _try_reserve(layout: Layout) -> Reservation | None:
    kind, nodes = alive_nodes()
    assignments = assign_ranks(nodes, layout)
    if assignments is None:
        return None
    group = _placement_group(
        [{kind: len(assignment.ranks)} for assignment in assignments],
        [assignment.node.id for assignment in assignments],
    )
    if group.wait(RESERVE_SECONDS):
        return Reservation(layout, assignments, kind, group)
    _remove_group(group)  # another job was faster, or a node is gone
    return None


@contextmanager
def _autoscaler_demand(layout: Layout) -> Iterator[Callable[[], bool]]:
    """Report the missing devices to Ray's autoscaler while the context is open. The report is a placement group in
    units of a tensor group, which nodes of any size can satisfy, and ends with this process; the autoscaler's own
    request would keep nodes running afterwards."""
    kind, _ = alive_nodes()
    group = _placement_group([{kind: layout.tensor}] * (layout.processes // layout.tensor))
    try:
        yield lambda: group.wait(0)
    finally:
        _remove_group(group)


def _placement_group(bundles: Sequence[dict[str, float]], node_ids: Sequence[str] = ()) -> Any:
    from ray.util.placement_group import placement_group

    labels = [{"ray.io/node-id": node_id} for node_id in node_ids]
    return placement_group(list(bundles), strategy="PACK", bundle_label_selector=labels or None)


def _remove_group(group: Any) -> None:
    from ray.util.placement_group import remove_placement_group

    remove_placement_group(group)
