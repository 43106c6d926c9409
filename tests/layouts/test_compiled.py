"""Compiled layers have the results of eager ones, and one graph for each kind of layer."""

import shutil
from functools import cache
from pathlib import Path

import pytest

from megaptm.config import Layout
from megaptm.families import CATALOGUE
from tests.families.groups import VISION
from tests.layouts.compiled import largest_difference, refused, resume_compiled, steps_of
from tests.ranks import run_ranks

ONE = Layout(microbatch=2)
LAYOUTS = {
    "recompute": Layout(microbatch=2, recompute="full"),
    "recompute attention": Layout(microbatch=2, recompute="attention"),
    "DP2 full sharding": Layout(microbatch=2, data=2, full_sharding=True),
    "CP2": Layout(microbatch=2, context=2),
    "TP2": Layout(microbatch=2, tensor=2),
    "TP2+SP": Layout(microbatch=2, tensor=2, sequence_parallel=True),
    "TP2+SP recompute": Layout(microbatch=2, tensor=2, sequence_parallel=True, recompute="full"),
    "PP2": Layout(microbatch=2, pipeline=2),
    "PP2 interleaved": Layout(microbatch=2, pipeline=2, virtual=2),
    "TP2+SPxPP2 recompute": Layout(microbatch=4, tensor=2, pipeline=2, sequence_parallel=True, recompute="full"),
}
QUICK_LAYOUTS = ("recompute attention", "DP2 full sharding", "PP2 interleaved")
"""Layouts outside the drills for gpt2, besides those with dropout."""
GRAPHS = {"gpt2": 1, "bert": 1, "t5": 2, "vit": 1, "bart": 2, "palm": 1}
"""Family -> kinds of layers. All four layers of a stack share a graph, and none is divided."""
TENSOR_RANK_GRAPHS = {"gpt2": 13, "albert": 9}
"""Family -> graphs of a layer between the linear layers of tensor ranks, which are recomputed."""
CAPTURED = "aot_eager"
"""Backend that captures the graphs of both passes and runs them without compiling."""


needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="needs a C++ compiler: the package g++ of Debian and Ubuntu, gcc-c++ of Fedora"
)


@cache
def eager(family, layout=ONE, dropout=0.0):
    return run_ranks(layout.processes, steps_of, family, layout, None, dropout)


@cache
def compiled(family, layout=ONE, backend=CAPTURED, dropout=0.0):
    return run_ranks(layout.processes, steps_of, family, layout, backend, dropout, seconds=600.0)  # compiles for long


def assert_equal(results, expected, limit=1e-6):
    for result, other in zip(results, expected, strict=True):
        assert largest_difference(result, other) < limit


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=pytest.mark.drill if name == "bart" else []) for name in GRAPHS]
)
def test_one_graph_for_each_kind_of_layer(family):
    [result] = compiled(family)
    assert (result["graphs"], result["breaks"], result["log"]) == (GRAPHS[family], {}, [])
    assert_equal([result], eager(family))


@pytest.mark.drill
@pytest.mark.parametrize("family", [name for name in (*CATALOGUE, *VISION) if name not in GRAPHS])
def test_every_family_equals_eager(family):
    """Adam's first steps amplify the rounding of small gradients."""
    assert_equal(compiled(family), eager(family), limit=1e-5)


@pytest.mark.parametrize(
    ("family", "name"),
    [
        pytest.param(family, name, marks=[] if family == "gpt2" and name in QUICK_LAYOUTS else pytest.mark.drill)
        for family in ("gpt2", "t5")
        for name in LAYOUTS
    ],
)
def test_layout_equals_eager(family, name):
    assert_equal(compiled(family, LAYOUTS[name]), eager(family, LAYOUTS[name]))


@pytest.mark.parametrize(
    "name",
    [
        "TP2",
        "TP2+SP recompute",
        "CP2",
        *(pytest.param(name, marks=pytest.mark.drill) for name in ("TP2+SP", "recompute")),
    ],
)
def test_dropout_has_the_streams_of_eager_layers(name):
    """Captured graphs call torch's kernels; compiled ones generate masks of their own."""
    assert_equal(compiled("gpt2", LAYOUTS[name], dropout=0.1), eager("gpt2", LAYOUTS[name], dropout=0.1))


@pytest.mark.parametrize("dropout", [0.1, pytest.param(0.0, marks=pytest.mark.drill)])
@pytest.mark.parametrize("family", ["gpt2", pytest.param("albert", marks=pytest.mark.drill)])
def test_sequence_parallel_dropout_divides_no_graph(family, dropout):
    """The graphs are divided by the linear layers of tensor ranks alone, with dropout as without."""
    [result, _] = compiled(family, LAYOUTS["TP2+SP recompute"], dropout=dropout)
    assert result["graphs"] == TENSOR_RANK_GRAPHS[family]


def test_attention_with_a_soft_cap_is_left_to_its_kernel():
    """Otherwise each layer is divided where it asks which kernel the device has."""
    [result] = compiled("gemma2")
    assert result["breaks"]
    assert all("torch.compiler.disable" in reason for reason in result["breaks"])
    assert_equal([result], eager("gemma2"), limit=1e-5)


def measures_nothing() -> bool:
    """Run in a rank: whether the compiler makes no choice by measurements that would change results."""
    import torch
    import torch._inductor.config as inductor

    from megaptm.parallel.compiled import _configure_torch

    torch.use_deterministic_algorithms(True)
    try:
        with inductor.patch(deterministic=False):  # other tests run in the same process
            _configure_torch()
            deterministic: bool = inductor.deterministic
            return deterministic
    finally:
        torch.use_deterministic_algorithms(False)


def test_compiler_of_deterministic_training_measures_nothing():
    assert run_ranks(1, measures_nothing) == [True]


def test_layer_that_cannot_be_compiled_is_eager():
    [result] = compiled("t5", backend=refused)
    assert result["log"] == [
        f"layer {name} is not compiled: RuntimeError: no compiler was found" for name in ("encoder.0", "decoder.0")
    ]
    assert_equal([result], eager("t5"))


def test_other_layers_are_named():
    [result] = compiled("reformer")
    assert result["log"] == [
        "the layers of the decoder are not compiled: they are reversible, and recompute their inputs"
    ]
    assert result["graphs"] == 0


@needs_compiler
@pytest.mark.parametrize(
    "family", ["gpt2", *(pytest.param(name, marks=pytest.mark.drill) for name in GRAPHS if name != "gpt2")]
)
def test_generated_code_equals_eager(family):
    assert_equal(compiled(family, backend="inductor"), eager(family))


@needs_compiler
def test_recomputed_layers_repeat_the_generated_dropout():
    [result] = compiled("gpt2", LAYOUTS["recompute"], "inductor", dropout=0.1)
    assert_equal([result], compiled("gpt2", ONE, "inductor", dropout=0.1))
    assert largest_difference(result, eager("gpt2")[0]) > 1e-3


@needs_compiler
def test_resume_with_dropout_is_bit_identical(tmp_path):
    def run(folder, start, steps):
        [result] = run_ranks(1, resume_compiled, "gpt2", ONE, str(folder), start, steps, seconds=600.0)
        return result

    uninterrupted, parts = tmp_path / "uninterrupted", tmp_path / "parts"
    expected = run(uninterrupted, 0, 4)
    first, second = run(parts, 0, 2), run(parts, 2, 2)
    assert first["losses"] + second["losses"] == expected["losses"]
    assert contents(parts / "step-4") == contents(uninterrupted / "step-4")


def contents(folder: Path):
    return {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}
