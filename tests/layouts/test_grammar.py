"""What tables can say beyond the catalogue trains the same in every layout."""

from itertools import product

import pytest

from megaptm.config import Layout
from tests.layouts.cases import train_steps
from tests.models.grammar import VARIANTS
from tests.ranks import run_ranks

LAYOUTS = {
    "TP2+SP": Layout(microbatch=2, tensor=2, sequence_parallel=True),
    "PP2 interleaved, recompute": Layout(microbatch=2, pipeline=2, virtual=2, recompute="full"),
    "DP2 distributed optimizer, recompute": Layout(microbatch=2, data=2, distributed_optimizer=True, recompute="full"),
}


@pytest.fixture(scope="module")
def alone():
    """Variant -> the one-process run."""
    return {name: run_ranks(1, train_steps, name, Layout(microbatch=2))[0] for name in VARIANTS}


OF_ROWS = (
    *("two towers, compared over all rows", "an n-gram that its text finds"),
    *("a loss inside a stack", "a head that reads the encoder"),
)
"""Variants of losses; those of layers are not other layers on data ranks, which the drills look at."""


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        pytest.param(name, layout, marks=pytest.mark.drill if layout.startswith("DP2") and name not in OF_ROWS else [])
        for name, layout in product(VARIANTS, LAYOUTS)
    ],
)
def test_a_layout_changes_nothing(alone, name, layout):
    for result in run_ranks(LAYOUTS[layout].processes, train_steps, name, LAYOUTS[layout]):
        for part in ("losses", "norms", "evaluation"):
            assert result[part] == pytest.approx(alone[name][part], rel=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["two towers, compared over all rows", "queries and keys turned by place"])
def test_bf16_stays_close(name, layout):
    one = run_ranks(1, train_steps, name, Layout(microbatch=2), 3, "bf16")[0]
    for result in run_ranks(LAYOUTS[layout].processes, train_steps, name, LAYOUTS[layout], 3, "bf16"):
        assert result["losses"] == pytest.approx(one["losses"], rel=5e-3)
