"""Synchronizations of the host with the device in a training step, counted without a GPU.

After each synchronization the device is idle until the host has launched new work.
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
    # Losses and counts of the step, in one copy after the backward pass was launched.
    "numbers: megaptm/parallel/engine.py _global_means": 1,
    # Whether the gradient is finite, before any weight changes.
    "numbers: megaptm/parallel/optimizers/optimizer.py gradient_norm": 1,
    # Whether any rank requests a stop.
    "copy: megaptm/parallel/collectives.py any_rank_each": 1,
    "numbers: megaptm/parallel/collectives.py any_rank_each": 1,
}
# Shapes of the micro-batches, for the other tensor ranks.
SHAPES = {"broadcast_object_list: megaptm/parallel/batches.py share_batches": 4}


@cache
def count_steps(guard, often):
    """Return case -> counters of a step, for the cases of each test run or for the others."""
    environment = {**os.environ, "GUARD": str(guard), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.cuda.steps", *(name for name in CASES if (name in OFTEN) == often)]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def without_lines(locations):
    counts: dict[str, int] = {}
    for location, number in locations.items():
        name = re.sub(r":\d+", "", location)
        counts[name] = counts.get(name, 0) + number
    return counts


EACH = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in OFTEN else [pytest.mark.drill]) for name in CASES]
)


@EACH
def test_host_synchronizations_of_a_step(guard, name):
    waits = count_steps(guard, name in OFTEN)[name]["waits"]
    allowed = STEP | (SHAPES if CASES[name].layout.tensor > 1 else {})
    assert without_lines(waits) == allowed, f"in lines: {json.dumps(waits, indent=1)}"


@EACH
def test_kernels_have_deterministic_forms(guard, name):
    """Otherwise torch ends a run with `train.deterministic`."""
    assert count_steps(guard, name in OFTEN)[name]["refused"] == {}


@pytest.mark.parametrize("rule", ["adafactor", "muon"])
def test_rules_launch_few_kernels(guard, rule):
    """At most as many as a pass of the model: a kernel for each operation and tensor would keep a GPU waiting."""
    kernels = {name: sum(count_steps(guard, True)[name]["kernels"].values()) for name in ("bert", f"bert by {rule}")}
    assert kernels[f"bert by {rule}"] - kernels["bert"] < 350


@pytest.mark.parametrize(
    ("family", "attentions", "microbatches", "moved"), [("gpt2", 2, 2, 2), ("bert", 2, 1, 2), ("bart", 3, 1, 9)]
)
def test_documents_need_no_mask_of_pairs(guard, family, attentions, microbatches, moved):
    """Each attention is one kernel forward and one backward, as without documents. `moved`: fields to the device, and
    keys and values of cross-attention with their gradients."""
    steps, calls = count_steps(guard, True), attentions * microbatches
    kernels, unpacked = (steps[name]["kernels"] for name in (family, f"{family}, whole sequences"))
    assert steps[family]["pairs"] == {}
    assert kernels["_flash_attention_forward"] == kernels["_flash_attention_backward"] == calls
    assert unpacked["_scaled_dot_product_flash_attention"] * microbatches == calls
    # The input of an attention, and its gradient, are copied so that the positions of a document are in a row.
    assert sum(kernels.values()) <= (sum(unpacked.values()) + 2 * attentions + moved) * microbatches


@pytest.mark.parametrize("name", ["gpt2, context ranks", "gpt2, context ranks, whole sequences"])
def test_context_ranks_need_no_mask_of_pairs(guard, name):
    """Each attention is one kernel for each of two chunks of queries; keys and values are gathered in one message."""
    step = count_steps(guard, True)[name]
    assert step["pairs"] == {}
    assert step["kernels"]["_flash_attention_forward"] == step["kernels"]["_flash_attention_backward"] == 2 * 2
