"""Placement of ranks on nodes: tensor ranks of a group share a node. Does not use Ray."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from megaptm.config import Layout
from megaptm.errors import UserError
from megaptm.schedulers.ray.cluster import Node


@dataclass(frozen=True)
class RankAssignment:
    """Assignment of ranks to one node."""

    node: Node
    ranks: range

    def __str__(self) -> str:
        first, last = self.ranks[0], self.ranks[-1]
        ranks = f"rank {first}" if first == last else f"ranks {first}-{last}"
        return f"{ranks} on {self.node.address}"


def assign_ranks(nodes: Sequence[Node], layout: Layout) -> list[RankAssignment] | None:
    """Assign ranks to as few nodes as possible, each with complete tensor groups; None if there is not enough room.

    Ranks of a node are consecutive, and megatron-core numbers tensor ranks first, so no group spans two nodes.
    """
    assignments: list[RankAssignment] = []
    first = 0
    for node in sorted(nodes, key=lambda node: -node.free):
        count = min(_in_whole_groups(node.free, layout.tensor), layout.processes - first)
        if count:
            assignments.append(RankAssignment(node, range(first, first + count)))
            first += count
    return assignments if first == layout.processes else None


def without_excluded(nodes: Sequence[Node], excluded: Collection[str]) -> list[Node]:
    """Return the nodes without those at excluded addresses."""
    return [node for node in nodes if node.address not in excluded]


def count_ranks(free: Sequence[int], tensor: int) -> int:
    """Return how many ranks get a device, in complete tensor groups per node."""
    return sum(_in_whole_groups(devices, tensor) for devices in free)


def not_enough_devices_error(nodes: Sequence[Node], layout: Layout, kind: str) -> UserError:
    """Return the error for a failed `assign_ranks`: the required and available devices."""
    groups = f", in groups of {layout.tensor} on one node (layout.tensor)" if layout.tensor > 1 else ""
    needed = f"the layout needs {layout.processes} {kind}s{groups}"
    if not any(node.devices for node in nodes):
        return UserError(f"{needed}, but the Ray cluster has none: add nodes, or wait for them with --wait SECONDS.")
    if count_ranks([node.devices for node in nodes], layout.tensor) < layout.processes:
        devices = ", ".join(f"{node.devices} on {node.address}" for node in nodes if node.devices)
        remedy = "change layout.data, or wait for more nodes with --wait SECONDS"
        return UserError(f"{needed}, but the Ray cluster has {devices}: {remedy}.")
    free = ", ".join(f"{node.free} on {node.address}" for node in nodes if node.devices)
    return UserError(f"{needed}, but the Ray cluster has only {free} free: wait for other jobs with --wait SECONDS.")


def _in_whole_groups(devices: int, tensor: int) -> int:
    return devices // tensor * tensor
