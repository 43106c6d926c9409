"""The Ray cluster that this process uses: one that is named, or one of its own on this machine."""

from __future__ import annotations

import logging
import os
from typing import Any

from megaptm.errors import UserError
from megaptm.ray.placement import Node

ANSWER_SECONDS = 15.0
# Ray gives itself 30 seconds to start, which a machine busy with other work can miss; the next start finds its files
# in memory.
STARTS = 5


def connect(address: str | None, *, processes: int) -> None:
    """Join the cluster at `address`, or at RAY_ADDRESS; absent: start one here, with room for so many processes.

    A Ray that merely happens to run on this machine is left alone, unless the address is `auto`.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UserError("training on Ray needs Ray: `pip install megaptm[corpus]`.") from None
    wanted = address or os.environ.get("RAY_ADDRESS")
    if wanted in (None, "local"):
        _start_here(processes)
        return
    assert wanted is not None
    _check_answers(wanted)
    try:
        ray.init(address=wanted, **_quiet())
    except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError) as error:
        raise _unreachable(wanted, error) from None


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


def _start_here(processes: int) -> None:
    import ray

    for attempts_left in reversed(range(STARTS)):
        try:
            ray.init(
                address="local",
                # On its own machine a user may start more processes than there are cores, as with `megaptm train`.
                num_cpus=max(processes, os.cpu_count() or 1),
                object_store_memory=128 << 20,  # nothing of a run goes through it
                include_dashboard=False,
                **_quiet(),
            )
            return
        except Exception as error:  # Ray raises the bare class
            if not attempts_left or "timed out during startup" not in str(error):
                raise
            ray.shutdown()


def _quiet() -> dict[str, Any]:
    return {"log_to_driver": False, "logging_level": logging.ERROR}


def _check_answers(address: str) -> None:
    """Ray itself would try for minutes, and then end this process, before it says that nobody is there."""
    if address.startswith("ray://"):
        raise UserError(
            f"--address {address} is for Ray's client, which cannot watch a run: give the head's HOST:6379, or use "
            "ray job submit."
        )
    if not address.rpartition(":")[2].isdigit():
        return  # `auto`: Ray looks for itself
    for answers in (_speaks_grpc, _is_rays):
        try:
            answers(address)
        except Exception as error:
            raise _unreachable(address, error) from None


def _speaks_grpc(address: str) -> None:
    """Said in seconds where nobody listens, or another service does."""
    if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
        return
    import grpc

    with grpc.insecure_channel(address) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=ANSWER_SECONDS)
        except grpc.FutureTimeoutError:
            raise ConnectionError(f"nothing in {ANSWER_SECONDS:.0f} s") from None


def _is_rays(address: str) -> None:
    """Raises within a minute where it is not, or where the token is not the cluster's."""
    import ray._raylet

    raylet: Any = ray._raylet
    raylet.GcsClient(address=address)


def _unreachable(address: str, error: Exception) -> UserError:
    said = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    return UserError(f"no Ray cluster answers at {address} ({said}): correct --address or RAY_ADDRESS, or unset it.")
