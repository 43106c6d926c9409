"""How often a training step on a GPU makes the host wait for it, counted without one.

After each wait the device has nothing to do until the host is ahead of it again.
"""

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.cuda.cases import CASES, OFTEN

STEP = {
    # Losses and counts of the step, all at once, when its backward pass is launched.
    "numbers: megaptm/parallel/engine.py _global_means": 1,
    # Whether the gradient is finite, before anything is moved by it.
    "numbers: megaptm/parallel/optimizers/update.py _gradient_norm": 1,
    # Whether somebody wishes to stop.
    "copy: megaptm/parallel/collectives.py any_rank_each": 1,
    "numbers: megaptm/parallel/collectives.py any_rank_each": 1,
}
# Shapes of the micro-batches, for the other tensor ranks.
SHAPES = {"broadcast_object_list: megaptm/parallel/batches.py share_batches": 4}


@cache
def counted(guard, often):
    """Case -> what the host waited for in a step; of those of each run of the tests, or of the others."""
    environment = {**os.environ, "GUARD": str(guard), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.cuda.steps", *(name for name in CASES if (name in OFTEN) == often)]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def without_lines(places):
    found: dict[str, int] = {}
    for place, times in places.items():
        name = re.sub(r":\d+", "", place)
        found[name] = found.get(name, 0) + times
    return found


EACH = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in OFTEN else [pytest.mark.drill]) for name in CASES]
)


@EACH
def test_the_host_waits_for_the_device_where_it_must_and_nowhere_else(guard, name):
    waits = counted(guard, name in OFTEN)[name]["waits"]
    allowed = STEP | (SHAPES if CASES[name].layout.tensor > 1 else {})
    assert without_lines(waits) == allowed, f"in lines: {json.dumps(waits, indent=1)}"


@EACH
def test_every_kernel_has_a_deterministic_form(guard, name):
    """Without one, torch ends a run whose `train.deterministic` is on."""
    assert counted(guard, name in OFTEN)[name]["refused"] == {}
