"""Model variants beyond the catalogue train the same in every layout."""

from itertools import product

import pytest

from megaptm.config import Layout
from tests.layouts.cases import train_steps
from tests.models.grammar import VARIANTS
from tests.ranks import run_ranks

LAYOUTS = {
    "TP2+SP": Layout(microbatch=4, tensor=2, sequence_parallel=True),
    "PP2 interleaved, recompute": Layout(microbatch=4, pipeline=2, virtual=2, recompute="full"),
    "DP2 distributed optimizer, recompute": Layout(microbatch=2, data=2, distributed_optimizer=True, recompute="full"),
}


@pytest.fixture(scope="module")
def single_process_runs():
    """Variant -> results of one process."""
    return {name: run_ranks(1, train_steps, name, Layout(microbatch=2))[0] for name in VARIANTS}


LOSS_VARIANTS = (
    *("two-towers-contrast", "infomax"),
    *("early-exit", "head-on-encoder"),
)
"""Variants of losses. Variants of layers do not differ on data ranks, which the drills test."""


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        pytest.param(
            name, layout, marks=pytest.mark.drill if layout.startswith("DP2") and name not in LOSS_VARIANTS else []
        )
        for name, layout in product(VARIANTS, LAYOUTS)
    ],
)
def test_layout_changes_no_result(single_process_runs, name, layout):
    for result in run_ranks(LAYOUTS[layout].processes, train_steps, name, LAYOUTS[layout]):
        for part in ("losses", "norms", "evaluation"):
            assert result[part] == pytest.approx(single_process_runs[name][part], rel=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["two-towers-contrast", "rope"])
def test_bf16_is_close_to_fp32(name, layout):
    single_process = run_ranks(1, train_steps, name, Layout(microbatch=2), 3, "bf16")[0]
    for result in run_ranks(LAYOUTS[layout].processes, train_steps, name, LAYOUTS[layout], 3, "bf16"):
        assert result["losses"] == pytest.approx(single_process["losses"], rel=5e-3)
