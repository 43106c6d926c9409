"""A process on each node of this Slurm job, started by one srun."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from megaptm.errors import UserError
from megaptm.python_path import module_command
from megaptm.schedulers.node_process import ProcessOutput, run_command
from megaptm.schedulers.slurm.command import try_slurm

LABELED = re.compile(r"^ *(\d+): ?(.*)$", re.MULTILINE)


def run_on_slurm_nodes(module: str, arguments: Sequence[str], seconds: float) -> tuple[list[str], list[ProcessOutput]]:
    """Run a module on each node of the job; return node names and outputs."""
    nodes = _expand_hostnames(os.environ["SLURM_JOB_NODELIST"])
    count = len(nodes)
    step = (f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", "--overlap", "--export=ALL")
    # The process on each node gets all CPUs of the job there, not the share of one of the job's own processes.
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_CPUS_PER_TASK")}
    output = run_command(["srun", *step, "--label", *module_command(module, *arguments)], environment, seconds)
    return nodes, split_by_node(output, nodes)


def split_by_node(output: ProcessOutput, nodes: Sequence[str]) -> list[ProcessOutput]:
    """Return the output of `srun --label` by node. If a node's process printed no error, srun's lines about the node
    take its place."""
    outs, errs = _lines_by_label(output.stdout), _lines_by_label(output.stderr)
    unlabeled = [line for line in output.stderr.splitlines() if line and not LABELED.match(line)]
    outputs = []
    for index, node in enumerate(nodes):
        about = [line for line in unlabeled if re.search(rf"\b{re.escape(node)}\b", line)] or unlabeled
        outputs.append(ProcessOutput("\n".join(outs.get(index, [])), "\n".join(errs.get(index, []) or about)))
    return outputs


def _lines_by_label(text: str) -> dict[int, list[str]]:
    lines: dict[int, list[str]] = {}
    for label, line in LABELED.findall(text):
        lines.setdefault(int(label), []).append(line)
    return lines


def _expand_hostnames(nodes: str) -> list[str]:
    reply = try_slurm("scontrol", "show", "hostnames", nodes)
    if reply.error:
        raise UserError(
            f"the nodes of this job ({nodes}) cannot be listed (scontrol: {reply.error}): run scontrol ping."
        )
    return reply.stdout.split()
