"""A process on each node of the Ray cluster at RAY_ADDRESS, by a task that is pinned there."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from megaptm.check.process import Output, run
from megaptm.ray_cluster import connected
from megaptm.train.environment import MEETING_PORTS


def run_on_ray(module: str, arguments: Sequence[str], seconds: float) -> tuple[list[str], list[Output]]:
    with connected():
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        nodes = [node for node in ray.nodes() if node["Alive"]]
        meeting = {
            "WORLD_SIZE": str(len(nodes)),
            "LOCAL_RANK": "0",
            "MASTER_ADDR": nodes[0]["NodeManagerAddress"],
            "MASTER_PORT": str(secrets.choice(MEETING_PORTS)),
        }
        task = ray.remote(num_cpus=0, max_retries=0)(_on_node)
        asked = [
            task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(
                module, tuple(arguments), seconds, {"RANK": str(rank), **meeting}
            )
            for rank, node in enumerate(nodes)
        ]
        done, _ = ray.wait(asked, num_returns=len(asked), timeout=seconds)
        output = [_answer(one) if one in done else Output("", f"nothing in {seconds:.0f} s") for one in asked]
    return _names(nodes), output


def _on_node(module: str, arguments: Sequence[str], seconds: float, place: Mapping[str, str]) -> Output:
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        del os.environ["CUDA_VISIBLE_DEVICES"]  # Ray hides the GPUs from a task that did not ask for any
    return run(module, arguments, seconds=seconds, more=place)


def _answer(task: Any) -> Output:
    import ray

    try:
        return ray.get(task)
    except ray.exceptions.RayError as error:
        return Output("", str(error))


def _names(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """The hosts' names; where several Ray nodes are on one host, with a piece of each one's number."""
    hosts = [node["NodeManagerHostname"] for node in nodes]
    return [
        host if hosts.count(host) == 1 else f"{host}-{node['NodeID'][:6]}"
        for host, node in zip(hosts, nodes, strict=True)
    ]
