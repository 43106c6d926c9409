"""A process on each node of the Ray cluster at RAY_ADDRESS, run by a task pinned to the node."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from megaptm.schedulers.node_process import ProcessOutput, run_module
from megaptm.schedulers.ray.connection import ray_connection
from megaptm.schedulers.rendezvous import RENDEZVOUS_PORTS


def run_on_ray_nodes(module: str, arguments: Sequence[str], seconds: float) -> tuple[list[str], list[ProcessOutput]]:
    with ray_connection():
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
        tasks = [
            task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(
                module, tuple(arguments), seconds, {"RANK": str(rank), **rendezvous}
            )
            for rank, node in enumerate(nodes)
        ]
        done, _ = ray.wait(tasks, num_returns=len(tasks), timeout=seconds)
        output = [
            _task_output(task) if task in done else ProcessOutput("", f"no answer in {seconds:.0f} s") for task in tasks
        ]
    return _node_names(nodes), output


def _on_node(module: str, arguments: Sequence[str], seconds: float, variables: Mapping[str, str]) -> ProcessOutput:
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        del os.environ["CUDA_VISIBLE_DEVICES"]  # Ray hides the GPUs from tasks that request none
    return run_module(module, arguments, seconds=seconds, variables=variables)


def _task_output(task: Any) -> ProcessOutput:
    import ray

    try:
        return ray.get(task)
    except ray.exceptions.RayError as error:
        return ProcessOutput("", str(error))


def _node_names(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the host names of Ray nodes, with the start of the node id where several Ray nodes share a host."""
    hosts = [node["NodeManagerHostname"] for node in nodes]
    return [
        host if hosts.count(host) == 1 else f"{host}-{node['NodeID'][:6]}"
        for host, node in zip(hosts, nodes, strict=True)
    ]
