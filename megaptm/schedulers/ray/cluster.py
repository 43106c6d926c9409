"""Nodes of the Ray cluster to which this process is connected, and their free devices."""

from __future__ import annotations

import os
from dataclasses import dataclass

from megaptm.errors import UserError
from megaptm.schedulers.ray.connection import CLIENT, connect_to_ray


@dataclass(frozen=True)
class Node:
    """Living node of the Ray cluster."""

    id: str
    address: str
    devices: int
    """Number of GPUs of the node; of CPUs if no node of the cluster has a GPU."""
    free: int
    """Number of devices of the node that are not in use."""


def join_ray_cluster(address: str | None, *, processes: int) -> None:
    """Connect to the Ray cluster at `address` or RAY_ADDRESS, or start one on this machine with room for the
    processes."""
    if (address or os.environ.get("RAY_ADDRESS") or "").startswith(CLIENT):
        raise UserError(
            f"--address {address or os.environ['RAY_ADDRESS']} is for Ray Client, which cannot supervise a run: use "
            "HOST:6379 of the head node, or ray job submit."
        )
    # On one machine a user may start more processes than there are cores, as with `megaptm train`.
    connect_to_ray(address, cpus=max(processes, os.cpu_count() or 1))


def alive_ray_nodes() -> tuple[str, list[Node]]:
    """Return the device that a rank needs, `GPU` or `CPU`, and the living nodes of the Ray cluster with their numbers
    of devices."""
    import ray

    alive = [node for node in ray.nodes() if node["Alive"]]
    kind = "GPU" if any(node["Resources"].get("GPU") for node in alive) else "CPU"
    # Ray's public API reports free resources for the cluster, not per node.
    free = ray._private.state.available_resources_per_node()
    return kind, [
        Node(
            id=node["NodeID"],
            address=node["NodeManagerAddress"],
            devices=int(node["Resources"].get(kind, 0)),
            free=int(free.get(node["NodeID"], {}).get(kind, 0)),
        )
        for node in alive
    ]
