"""A process on each node of this Slurm job, by one srun."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from megaptm.errors import UserError
from megaptm.python_path import module_command
from megaptm.schedulers.node_process import ProcessOutput, finish
from megaptm.schedulers.slurm.command import answer

LABELED = re.compile(r"^ *(\d+): ?(.*)$", re.MULTILINE)


def run_on_slurm(module: str, arguments: Sequence[str], seconds: float) -> tuple[list[str], list[ProcessOutput]]:
    nodes = _hostnames(os.environ["SLURM_JOB_NODELIST"])
    count = len(nodes)
    step = (f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", "--overlap", "--export=ALL")
    # A process for each node takes all that the job has there: what the job's own processes are given does not matter.
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_CPUS_PER_TASK")}
    both = finish(["srun", *step, "--label", *module_command(module, *arguments)], environment, seconds)
    return nodes, by_label(both, nodes)


def by_label(both: ProcessOutput, nodes: Sequence[str]) -> list[ProcessOutput]:
    """The output of `srun --label`, by node. What srun says of a node stands where the node's process said nothing."""
    outs, errs = _lines_by_label(both.stdout), _lines_by_label(both.stderr)
    unlabeled = [line for line in both.stderr.splitlines() if line and not LABELED.match(line)]
    found = []
    for number, node in enumerate(nodes):
        about = [line for line in unlabeled if re.search(rf"\b{re.escape(node)}\b", line)] or unlabeled
        found.append(ProcessOutput("\n".join(outs.get(number, [])), "\n".join(errs.get(number, []) or about)))
    return found


def _lines_by_label(text: str) -> dict[int, list[str]]:
    lines: dict[int, list[str]] = {}
    for label, line in LABELED.findall(text):
        lines.setdefault(int(label), []).append(line)
    return lines


def _hostnames(nodes: str) -> list[str]:
    given = answer("scontrol", "show", "hostnames", nodes)
    if given.refusal:
        raise UserError(
            f"the nodes of this job ({nodes}) cannot be listed (scontrol: {given.refusal}): see scontrol ping."
        )
    return given.stdout.split()
