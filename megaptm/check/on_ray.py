"""A process on each node of the Ray cluster at RAY_ADDRESS, by a task that is pinned there."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from megaptm.check.process import Output, last_line, run
from megaptm.errors import UserError

ANSWER_SECONDS = 10.0
PORTS = range(12000, 32000)
"""Below those that Linux gives to outgoing connections."""


def run_on_ray(module: str, arguments: Sequence[str], seconds: float) -> tuple[list[str], list[Output]]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    with _cluster():
        nodes = [node for node in ray.nodes() if node["Alive"]]
        meeting = {
            "WORLD_SIZE": str(len(nodes)),
            "LOCAL_RANK": "0",
            "MASTER_ADDR": nodes[0]["NodeManagerAddress"],
            "MASTER_PORT": str(secrets.choice(PORTS)),
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


@contextlib.contextmanager
def _cluster() -> Iterator[None]:
    import ray

    if ray.is_initialized():
        yield
        return
    address = os.environ["RAY_ADDRESS"]
    _must_answer(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(f"RAY_ADDRESS={address} is no Ray cluster ({last_line(str(error))}): unset it.") from None
    try:
        yield
    finally:
        ray.shutdown()


def _must_answer(address: str) -> None:
    """Ray itself tries for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not port.isdigit():
        return  # a word, as `auto`
    try:
        socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS).close()
    except OSError as error:
        raise UserError(f"RAY_ADDRESS={address} does not answer ({error}): start Ray there, or unset it.") from None
