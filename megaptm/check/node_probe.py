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
class Answers:
    """Replies of the nodes."""

    by_node: dict[str, dict[str, Any]]
    """Facts by node name, in the scheduler's order."""
    silent: dict[str, str]
    """Reasons by node that did not reply."""
    begin: float
    """This machine's clock before and after the probe."""
    end: float
    everywhere: bool
    """Whether a scheduler's nodes were probed, not only this machine."""


def probe_nodes(module: str, arguments: Sequence[str] = (), *, seconds: float) -> Answers:
    """Run one process on each node; nodes without a reply in time are silent."""
    begin = time.time()
    if "SLURM_JOB_ID" in os.environ and shutil.which("srun"):
        from megaptm.schedulers.slurm.nodes import run_on_slurm_nodes

        nodes, output = run_on_slurm_nodes(module, arguments, seconds)
    elif os.environ.get("RAY_ADDRESS"):
        from megaptm.schedulers.ray.nodes import run_on_ray_nodes

        nodes, output = run_on_ray_nodes(module, arguments, seconds)
    else:
        alone = run_module(module, arguments, seconds=seconds)
        return gather([socket.gethostname()], [alone], begin=begin, everywhere=False)
    return gather(nodes, output, begin=begin, everywhere=True)


def gather(nodes: Sequence[str], output: Sequence[ProcessOutput], *, begin: float, everywhere: bool) -> Answers:
    """Return the facts of nodes that replied, and the last error line of the others."""
    pairs = list(zip(nodes, output, strict=True))
    return Answers(
        by_node={node: found for node, one in pairs if (found := parse_facts(one.stdout))},
        silent={node: last_line(one.stderr) for node, one in pairs if not parse_facts(one.stdout)},
        begin=begin,
        end=time.time(),
        everywhere=everywhere,
    )
