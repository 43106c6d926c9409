"""Kernels of a training step of published models, and the bytes that they move, do not become more.

`python -m tests.cuda.launches` prints the table anew, with the environment variable `GUARD` (`conftest.guard`).
"""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml

FOLDER = Path(__file__).parent
BUDGETS = yaml.safe_load((FOLDER / "launches.yaml").read_text())
OFTEN = ("gpt2",)


@cache
def count_launches(guard, often):
    """Return family -> kernels, megabytes and waits, for the families of each test run or for the others."""
    environment = {**os.environ, "GUARD": str(guard), "OMP_NUM_THREADS": "1"}
    families = [family for family in BUDGETS if (family in OFTEN) == often]
    command = [sys.executable, "-m", "tests.cuda.launches", *families]
    done = subprocess.run(command, cwd=FOLDER.parents[1], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return yaml.safe_load(done.stdout)


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[] if name in OFTEN else [pytest.mark.drill]) for name in BUDGETS]
)
def test_step_launches_no_more_kernels(guard, family):
    counted = count_launches(guard, family in OFTEN)[family]
    over = {name: counted[name] for name, budget in BUDGETS[family].items() if counted[name] > budget}
    assert not over
