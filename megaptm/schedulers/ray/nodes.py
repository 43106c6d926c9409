"""A process on each node of the Ray cluster at RAY_ADDRESS, by a task that is pinned there."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from megaptm.schedulers.node_process import ProcessOutput, run
from megaptm.schedulers.ray.connection import connected
from megaptm.schedulers.rendezvous import RENDEZVOUS_PORTS


def run_on_ray(module: str, arguments: Sequence[str], seconds: float) -> tuple[list[str], list[ProcessOutput]]:
    with connected():
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        nodes = [node for node in ray.nodes() if node["Alive"]]
        rendezvous = {
            "WORLD_SIZE": str(len(nodes)),
            "LOCAL_RANK": "0",
            "MASTER_ADDR": nodes[0]["NodeManagerAddress"],
            "MASTER_PORT": str(secrets.choice(RENDEZVOUS_PORTS)),
        }
        task = ray.remote(num_cpus=0, max_retries=0)(_on_node)
        asked = [
            task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(
                module, tuple(arguments), seconds, {"RANK": str(rank), **rendezvous}
            )
            for rank, node in enumerate(nodes)
        ]
        done, _ = ray.wait(asked, num_returns=len(asked), timeout=seconds)
        output = [_answer(one) if one in done else ProcessOutput("", f"nothing in {seconds:.0f} s") for one in asked]
    return _names(nodes), output


def _on_node(module: str, arguments: Sequence[str], seconds: float, place: Mapping[str, str]) -> ProcessOutput:
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        del os.environ["CUDA_VISIBLE_DEVICES"]  # Ray hides the GPUs from a task that did not ask for any
    return run(module, arguments, seconds=seconds, more=place)


def _answer(task: Any) -> ProcessOutput:
    import ray

    try:
        return ray.get(task)
    except ray.exceptions.RayError as error:
        return ProcessOutput("", str(error))


def _names(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """The hosts' names; where several Ray nodes are on one host, with a piece of each one's number."""
    hosts = [node["NodeManagerHostname"] for node in nodes]
    return [
        host if hosts.count(host) == 1 else f"{host}-{node['NodeID'][:6]}"
        for host, node in zip(hosts, nodes, strict=True)
    ]
