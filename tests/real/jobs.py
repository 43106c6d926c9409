"""Jobs of the scripts in slurm/, as a user submits them: small configs, few nodes, everything else as it is shipped."""

from __future__ import annotations

from pathlib import Path

from tests import ROOT
from tests.drills.program import arguments
from tests.real.slurm_cluster import SlurmCluster

STEPS = 12
PACED = "objective=tests.real.paced:PACED"
"""For runs of so few steps that are to be met under way."""
ENDS = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


def small(family: str, run: Path, corpus: Path, *overrides: str) -> list[str]:
    """CONFIG and overrides of a run whose steps take next to nothing."""
    return arguments(family, run, corpus, "model.layers=2", "data.workers=0", *overrides)


def submit(slurm: SlurmCluster, script: str, log: Path, words: list[str], *more: str, nodes: int, tasks: int) -> str:
    """`sbatch slurm/SCRIPT.sh WORDS` on `nodes` with `tasks` processes each; the job's number."""
    few = (f"--nodes={nodes}", f"--ntasks-per-node={tasks}", "--cpus-per-task=1")
    return slurm.submit(*few, *more, f"--output={log}", str(ROOT / f"slurm/{script}.sh"), *words)
