"""Probe of every node of a Slurm job or Ray cluster, or of this machine alone."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from megaptm.schedulers.node_process import ProcessOutput, last_line, parse_facts, run_module


@dataclass(frozen=True, kw_only=True)
class NodeReplies:
    """Replies of the probed nodes."""

    by_node: dict[str, dict[str, Any]]
    """Facts by node name, in the scheduler's order."""
    silent: dict[str, str]
    """Nodes that did not reply to the probe, each with the reason."""
    begin: float
    """Times of this machine's clock before and after the nodes were probed."""
    end: float
    all_nodes: bool
    """Whether all nodes of a scheduler were probed, not only this machine."""


def probe_nodes(module: str, arguments: Sequence[str] = (), *, seconds: float) -> NodeReplies:
    """Probe nodes: run one process on each; nodes without a reply in time are silent."""
    begin = time.time()
    if "SLURM_JOB_ID" in os.environ and shutil.which("srun"):
        from megaptm.schedulers.slurm.nodes import run_on_slurm_nodes

        nodes, outputs = run_on_slurm_nodes(module, arguments, seconds)
    elif os.environ.get("RAY_ADDRESS"):
        from megaptm.schedulers.ray.nodes import run_on_ray_nodes

        nodes, outputs = run_on_ray_nodes(module, arguments, seconds)
    else:
        output = run_module(module, arguments, seconds=seconds)
        return collect_replies([socket.gethostname()], [output], begin=begin, all_nodes=False)
    return collect_replies(nodes, outputs, begin=begin, all_nodes=True)


def collect_replies(
    nodes: Sequence[str], outputs: Sequence[ProcessOutput], *, begin: float, all_nodes: bool
) -> NodeReplies:
    """Return the facts of probed nodes that replied, and the last error line of the others."""
    by_node = list(zip(nodes, outputs, strict=True))
    return NodeReplies(
        by_node={node: facts for node, output in by_node if (facts := parse_facts(output.stdout))},
        silent={node: last_line(output.stderr) for node, output in by_node if not parse_facts(output.stdout)},
        begin=begin,
        end=time.time(),
        all_nodes=all_nodes,
    )
