"""Kernels of a compiled layer, as torch's compiler schedules them for a GPU, counted without one."""

import json
import os
import subprocess
import sys
from functools import cache

import pytest

from tests import ROOT

GENERATED = {
    # A norm, the activation, and residual connection, dropout and norm in one kernel each; rotation and queries beside.
    "gpt2": {"decoder": (4, 10)},
    "bert": {"encoder": (3, 10)},
    "t5": {"encoder": (5, 7), "decoder": (6, 10)},
    "palm": {"decoder": (5, 7)},
    "clip": {"image": (4, 10), "text": (4, 11)},
}
"""Family -> stack -> largest numbers of generated kernels, forward and backward."""
OFTEN = ("gpt2", "bert", "t5")
"""Families of each test run: a decoder, an encoder, cross-attention. The drills test parallel sub-layers and images."""
PRODUCTS = {"gpt2": 4, "bert": 4, "t5": 4, "palm": 5, "clip": 4}
"""Family -> matrix products of a layer of its first stack; the backward pass has twice as many."""


@cache
def graphs_of(guard, often):
    """Return family -> stack -> graphs, for the families of each test run or for the others."""
    environment = {**os.environ, "GUARD": str(guard), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.cuda.compiled", *(name for name in GENERATED if (name in OFTEN) == often)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def marks(family):
    return [] if family in OFTEN else [pytest.mark.drill]


@pytest.mark.parametrize(
    ("family", "stack"),
    [pytest.param(family, stack, marks=marks(family)) for family, stacks in GENERATED.items() for stack in stacks],
)
def test_generated_kernels_of_a_layer(guard, family, stack):
    [graph] = graphs_of(guard, family in OFTEN)[family][stack]
    forward, backward = GENERATED[family][stack]
    assert graph["forward"]["generated"] <= forward
    assert graph["backward"]["generated"] <= backward


@pytest.mark.parametrize("family", [pytest.param(family, marks=marks(family)) for family in GENERATED])
def test_other_kernels_are_products_and_attention(guard, family):
    [graph] = next(iter(graphs_of(guard, family in OFTEN)[family].values()))
    launches = {name: number for name, number in graph["forward"].items() if name != "generated"}
    assert launches.pop("addmm", 0) + launches.pop("mm", 0) == PRODUCTS[family]
    assert launches.pop("randint") == 1  # seeds of all dropouts
    assert sum(launches.values()) == 1
    assert graph["backward"]["mm"] == 2 * PRODUCTS[family]


@pytest.mark.parametrize(("family", "kinds"), [("gpt2", 1), ("modernbert", 3)])
def test_number_of_documents_compiles_nothing_again(guard, family, kinds):
    """Attention within documents, whose number varies, is in the one graph of a kind of layer; also in a window."""
    graphs = graphs_of(guard, True)[f"{family} documents"]
    assert len(graphs) == kinds
    for graph in graphs:
        assert graph["forward"]["_flash_attention_forward"] == graph["backward"]["_flash_attention_backward"] == 1
