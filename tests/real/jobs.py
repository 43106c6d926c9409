"""Jobs of the scripts in slurm/, submitted as by a user, with small configs and few nodes."""

from __future__ import annotations

from pathlib import Path

from tests import ROOT
from tests.drills.program import arguments
from tests.real.slurm_cluster import SlurmCluster

STEPS = 12
SLOW_OBJECTIVE = "objective=tests.real.slow_objective:SLOW_OBJECTIVE"
"""Slow objective for short runs that a test must find running."""
ENDS = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


def small(family: str, run: Path, corpus: Path, *overrides: str) -> list[str]:
    """Return the config and overrides of a run with very short steps."""
    return arguments(family, run, corpus, "model.layers=2", "data.workers=0", *overrides)


def submit(slurm: SlurmCluster, script: str, log: Path, words: list[str], *more: str, nodes: int, tasks: int) -> str:
    """Run `sbatch slurm/SCRIPT.sh WORDS` on `nodes` with `tasks` processes each; return the job id."""
    resources = (f"--nodes={nodes}", f"--ntasks-per-node={tasks}", "--cpus-per-task=1")
    return slurm.submit(*resources, *more, f"--output={log}", str(ROOT / f"slurm/{script}.sh"), *words)
