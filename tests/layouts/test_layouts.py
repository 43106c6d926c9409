"""Promise 1: losses and gradient norm of every family equal those of one process in every layout.

The tests run each family in two layouts: one with tensor ranks, stages and recomputation, one with full sharding and
recomputed attention. One family of each kind of model runs in all layouts. The drills run the other combinations.
"""

from functools import cache

import pytest

from megaptm.config import Layout
from megaptm.families import CATALOGUE
from tests.families.groups import RECURRENT, VISION
from tests.layouts.cases import KINDS, train_steps
from tests.ranks import run_ranks

LAYOUTS = {
    "one micro-batch": Layout(microbatch=8),
    "recompute": Layout(microbatch=2, recompute="full"),
    "recompute attention": Layout(microbatch=2, recompute="attention"),
    "TP2+SPxPP2 recompute attention of every 2": Layout(
        microbatch=4, tensor=2, pipeline=2, sequence_parallel=True, recompute="attention", recompute_every=2
    ),
    "TP2": Layout(microbatch=2, tensor=2),
    "TP2+SP": Layout(microbatch=2, tensor=2, sequence_parallel=True),
    "PP2": Layout(microbatch=2, pipeline=2),
    "PP2 interleaved": Layout(microbatch=2, pipeline=2, virtual=2),
    "DP2": Layout(microbatch=2, data=2),
    "DP2 distributed optimizer": Layout(microbatch=2, data=2, distributed_optimizer=True),
    "DP2 full sharding": Layout(microbatch=2, data=2, full_sharding=True),
    "DP2 full sharding recompute attention": Layout(microbatch=2, data=2, full_sharding=True, recompute="attention"),
    "DP2xTP2+SP full sharding recompute": Layout(
        microbatch=2, data=2, tensor=2, sequence_parallel=True, full_sharding=True, recompute="full"
    ),
    "TP2xPP2": Layout(microbatch=2, tensor=2, pipeline=2),
    "TP2xDP2": Layout(microbatch=2, tensor=2, data=2),
    "PP4": Layout(microbatch=2, pipeline=4),
    "TP2+SPxPP2 recompute": Layout(microbatch=4, tensor=2, pipeline=2, sequence_parallel=True, recompute="full"),
    "PP3 1+3+0": Layout(microbatch=2, pipeline=3, layers_per_stage=(1, 3, 0)),
    "TP2+SPxPP2 3+1": Layout(microbatch=4, tensor=2, pipeline=2, sequence_parallel=True, layers_per_stage=(3, 1)),
    "PP2 interleaved 1+2+1+0": Layout(microbatch=2, pipeline=2, virtual=2, layers_per_stage=(1, 2, 1, 0)),
    "TP2xPP2 interleaved 1+1+2+0": Layout(microbatch=2, tensor=2, pipeline=2, virtual=2, layers_per_stage=(1, 1, 2, 0)),
    "PP2xDP2 distributed optimizer": Layout(microbatch=2, pipeline=2, data=2, distributed_optimizer=True),
    "PP2 interleavedxDP2": Layout(microbatch=2, pipeline=2, virtual=2, data=2),
    "PP2 interleavedxDP2 distributed optimizer": Layout(
        microbatch=2, pipeline=2, virtual=2, data=2, distributed_optimizer=True
    ),
}


@cache
def alone(family):
    """Return the results of one process."""
    return run_ranks(1, train_steps, family, Layout(microbatch=2))[0]


REVERSIBLE = ("reformer", "reformer-novel")
"""Families whose layers are not run as modules, and which full sharding refuses."""
TIED = ("albert", "deberta-v3", "electra", "bart", "uniter", "unimo")
"""Families whose stages share tables or layers, in addition to KINDS."""
FEW_AXES = (
    *("TP2", "TP2+SP", "PP2", "PP2 interleaved", "DP2", "DP2 distributed optimizer", "DP2 full sharding"),
    *("recompute attention", "TP2xPP2", "TP2xDP2"),
)
"""Layouts of each family in the drills."""
LAYOUTS_OF_TIED = (
    *("PP2xDP2 distributed optimizer", "PP2 interleavedxDP2 distributed optimizer"),
    *("PP3 1+3+0", "TP2+SPxPP2 3+1", "PP2 interleaved 1+2+1+0", "TP2xPP2 interleaved 1+1+2+0"),
)
"""Each stage reduces its copy over data ranks, which divide it; then stages sum the same part of each copy. Cuts by
hand: a stage of an encoder-decoder has the end of one and the start of the other; a stage has only heads."""

QUICK = ("TP2+SPxPP2 recompute", "DP2 full sharding recompute attention")
"""Layouts of each family outside the drills."""
QUICK_OF_TIED = (*QUICK, "PP2 interleavedxDP2 distributed optimizer", "TP2xPP2 interleaved 1+1+2+0")
QUICK_OF_KINDS = (
    *(*QUICK_OF_TIED, "one micro-batch", "TP2+SPxPP2 recompute attention of every 2", "TP2xPP2", "TP2xDP2"),
    *("DP2xTP2+SP full sharding recompute", "PP3 1+3+0", "PP2xDP2 distributed optimizer"),
)
"""Each axis and most pairs of axes. A single axis is in several of them."""
QUICK_OF_REVERSIBLE = ("TP2+SPxPP2 recompute", "DP2 distributed optimizer", "recompute attention")
QUICK_OF_RECURRENT = ("one micro-batch", "DP2 distributed optimizer")
"""Recurrent families support only data parallelism."""


def layouts_of(family):
    """Return the layouts of a family outside the drills, and all of them."""
    if family in KINDS:
        return QUICK_OF_KINDS, LAYOUTS
    if family in RECURRENT:
        return QUICK_OF_RECURRENT, QUICK_OF_RECURRENT
    if family in REVERSIBLE:
        names = dict.fromkeys((*QUICK_OF_REVERSIBLE, *FEW_AXES))
        return QUICK_OF_REVERSIBLE, [name for name in names if not LAYOUTS[name].full_sharding]
    if family in TIED:
        return QUICK_OF_TIED, (*QUICK, *FEW_AXES, *LAYOUTS_OF_TIED)
    return QUICK, (*QUICK, *FEW_AXES)


CASES = [(family, name) for family in (*CATALOGUE, *VISION, *RECURRENT) for name in layouts_of(family)[1]]


@pytest.mark.parametrize(
    ("family", "name"),
    [
        pytest.param(family, name, marks=[] if name in layouts_of(family)[0] else pytest.mark.drill)
        for family, name in CASES
    ],
)
def test_layout_changes_no_result(family, name):
    layout = LAYOUTS[name]
    for result in run_ranks(layout.processes, train_steps, family, layout):
        for part in ("losses", "norms", "evaluation"):
            assert result[part] == pytest.approx(alone(family)[part], rel=1e-5)


@pytest.mark.parametrize("family", [*CATALOGUE, *VISION, *RECURRENT])
def test_fp16_is_close_to_fp32(family):
    [result] = run_ranks(1, train_in_fp16, family)
    assert result["losses"] == pytest.approx(alone(family)["losses"], rel=1e-2)
    assert result["norms"] == pytest.approx(alone(family)["norms"], rel=5e-2)


def train_in_fp16(family):
    # At the default scale, the gradients of a few tokens are infinite.
    return train_steps(family, Layout(microbatch=2), 2, "fp16", loss_scale=64.0)


EACH_KIND = pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[] if name == "gpt2" else pytest.mark.drill) for name in KINDS]
)
"""In half precision layouts differ by the order of sums, which does not depend on the family."""


@pytest.mark.parametrize("name", ["TP2+SP", "PP2 interleaved", "DP2 distributed optimizer"])
@EACH_KIND
def test_fp16_is_equal_in_every_layout(family, name):
    layout = LAYOUTS[name]
    [single_process] = run_ranks(1, train_steps, family, Layout(microbatch=2), 3, "fp16")
    for result in run_ranks(layout.processes, train_steps, family, layout, 3, "fp16"):
        assert result["losses"] == pytest.approx(single_process["losses"], rel=1e-3)
        assert result["norms"] == pytest.approx(single_process["norms"], rel=2e-2)


@EACH_KIND
@pytest.mark.parametrize("name", ["TP2+SP", "PP2", "DP2 distributed optimizer"])
def test_bf16_is_close_to_fp32(family, name):
    layout = LAYOUTS[name]
    single_process = run_ranks(1, train_steps, family, Layout(microbatch=2), 3, "bf16")[0]
    for result in run_ranks(layout.processes, train_steps, family, layout, 3, "bf16"):
        assert result["losses"] == pytest.approx(single_process["losses"], rel=5e-3)
