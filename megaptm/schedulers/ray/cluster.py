"""The nodes of the Ray cluster that this process has joined, and what is free on them."""

from __future__ import annotations

import os
from dataclasses import dataclass

from megaptm.errors import UserError
from megaptm.schedulers.ray.connection import CLIENT, connect


@dataclass(frozen=True)
class Node:
    """A machine of the cluster that is alive."""

    id: str
    address: str
    devices: int
    """GPUs; where no machine of the cluster has any, CPUs."""
    free: int
    """Those that nobody uses."""


def join(address: str | None, *, processes: int) -> None:
    """Connect to the cluster at `address`, or at RAY_ADDRESS, or to one of this machine with room for the processes."""
    if (address or os.environ.get("RAY_ADDRESS") or "").startswith(CLIENT):
        raise UserError(
            f"--address {address or os.environ['RAY_ADDRESS']} is for Ray's client, which cannot watch a run: give the "
            "head's HOST:6379, or use ray job submit."
        )
    # On its own machine a user may start more processes than there are cores, as with `megaptm train`.
    connect(address, cpus=max(processes, os.cpu_count() or 1))


def nodes() -> tuple[str, list[Node]]:
    """What a rank needs one of, `GPU` or `CPU`, and the nodes that are alive, with how many they have."""
    import ray

    alive = [node for node in ray.nodes() if node["Alive"]]
    kind = "GPU" if any(node["Resources"].get("GPU") for node in alive) else "CPU"
    # Ray's public interface knows what is free in the whole cluster, but not where.
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
