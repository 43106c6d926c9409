"""Reservation of devices on the cluster, at once or when they become available."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from megaptm.config import Layout
from megaptm.launch.ray.placement import RankAssignment, assign_ranks, without_excluded
from megaptm.schedulers.ray.cluster import alive_ray_nodes

RESERVE_SECONDS = 30.0
POLL_SECONDS = 0.5
NODE_ID = "ray.io/node-id"
"""Label by which Ray selects a node."""


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
    layout: Layout,
    *,
    seconds: float,
    should_stop: Callable[[], object] = lambda: False,
    excluded: Collection[str] = (),
) -> Reservation | None:
    """Reserve devices of the Ray cluster within `seconds`; return None if there are not enough. `excluded`: addresses
    of nodes that are not used."""
    deadline = time.monotonic() + seconds
    if (reservation := _try_reserve(layout, excluded)) or seconds <= 0:
        return reservation
    with _autoscaler_demand(layout, excluded) as is_met:
        while not is_met():
            if should_stop() or time.monotonic() > deadline:
                return None
            time.sleep(POLL_SECONDS)
            if reservation := _try_reserve(layout, excluded):
                return reservation
    # Devices that met the demand become free shortly after the demand is removed.
    until = time.monotonic() + RESERVE_SECONDS
    while not (reservation := _try_reserve(layout, excluded)) and time.monotonic() < until and not should_stop():
        time.sleep(POLL_SECONDS)
    return reservation


def _try_reserve(layout: Layout, excluded: Collection[str]) -> Reservation | None:
    kind, nodes = alive_ray_nodes()
    assignments = assign_ranks(without_excluded(nodes, excluded), layout)
    if assignments is None:
        return None
    group = _placement_group(
        [{kind: len(assignment.ranks)} for assignment in assignments],
        [{NODE_ID: assignment.node.id} for assignment in assignments],
    )
    if group.wait(RESERVE_SECONDS):
        return Reservation(layout, assignments, kind, group)
    _remove_group(group)  # another job was faster, or a node is gone
    return None


@contextmanager
def _autoscaler_demand(layout: Layout, excluded: Collection[str]) -> Iterator[Callable[[], bool]]:
    """Report the missing devices to Ray's autoscaler while the context is open. The report is a placement group in
    units of a tensor group, which nodes of any size can satisfy, and ends with this process; the autoscaler's own
    request would keep nodes running afterwards."""
    kind, nodes = alive_ray_nodes()
    ids = [node.id for node in nodes if node.address in excluded]
    count = layout.processes // layout.tensor
    labels = [{NODE_ID: f"!in({','.join(ids)})"}] * count if ids else None
    group = _placement_group([{kind: layout.tensor}] * count, labels)
    try:
        yield lambda: group.wait(0)
    finally:
        _remove_group(group)


def _placement_group(bundles: list[dict[str, float]], labels: list[dict[str, str]] | None) -> Any:
    from ray.util.placement_group import placement_group

    return placement_group(bundles, strategy="PACK", bundle_label_selector=labels)


def _remove_group(group: Any) -> None:
    from ray.util.placement_group import remove_placement_group

    remove_placement_group(group)
