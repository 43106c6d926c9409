"""The scripts that sbatch takes: those in the folder slurm/ are what this writes, with their numbers."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from megaptm.schedulers.slurm.options import script_lines
from megaptm.schedulers.slurm.slurm_time import WARNING_SECONDS

CARRIED = (
    *("MEGAPTM_HOME", "MEGAPTM_VENV", "MEGAPTM_IMAGE", "MEGAPTM_ALLOW_CODE", "PYTHONPATH"),
    *("MEGAPTM_CHAIN", "MEGAPTM_CHECK"),
)
"""Variables that a job takes along from where it is submitted; no others."""


@dataclass(frozen=True, kw_only=True)
class JobScript:
    """What a job asks Slurm for."""

    name: str
    nodes: int
    tasks: int = 8
    """Processes on a node, each with a GPU of its own."""
    gpus: int = 8
    """Per node; 0 asks for none."""
    cpus: int = 12
    """For each process."""
    time: str = "24:00:00"
    output: str = "%x-%j.log"
    more: tuple[str, ...] = ()
    """Further options of sbatch, a word each: --partition=large."""

    def lines(self) -> list[str]:
        gpus = [f"--gpus-per-node={self.gpus}"] if self.gpus else []
        options = [
            *(f"--job-name={self.name}", f"--nodes={self.nodes}", f"--ntasks-per-node={self.tasks}", *gpus),
            *(f"--cpus-per-task={self.cpus}", "--mem=0", "--exclusive", f"--time={self.time}"),
            *(f"--signal=B:USR1@{WARNING_SECONDS:.0f}", "--requeue", "--open-mode=append", f"--output={self.output}"),
            *(f"--export={','.join(CARRIED)}", *self.more),
        ]
        return [f"#SBATCH {line}" for line in script_lines(options)]


def render(job: JobScript, words: Sequence[str], *, title: str) -> str:
    """The script; `words` are what `megaptm train` is given, and what stands on sbatch's command line follows them."""
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            f"# {title}",
            *job.lines(),
            'source "${MEGAPTM_HOME:-$SLURM_SUBMIT_DIR}/slurm/common.sh"',
            "",
            f'train {shlex.join(words)} "$@"',
            "",
        ]
    )
