"""Context parallelism: losses and gradient norm equal those of one process."""

from functools import cache
from typing import Any

import pytest

from megaptm.config import Layout
from tests.layers.flash_on_cpu import flash_on_cpu
from tests.layouts.cases import train_steps
from tests.ranks import run_ranks

LAYOUTS = {
    "CP2": Layout(microbatch=2, context=2),
    "CP4": Layout(microbatch=2, context=4),
    "CP2 recompute": Layout(microbatch=2, context=2, recompute="full"),
    "CP2 recompute attention": Layout(microbatch=2, context=2, recompute="attention"),
    "CP2 distributed optimizer": Layout(microbatch=2, context=2, distributed_optimizer=True),
    "CP2 full sharding": Layout(microbatch=2, context=2, full_sharding=True),
    "CP2xTP2": Layout(microbatch=2, context=2, tensor=2),
    "CP2xTP2+SP": Layout(microbatch=2, context=2, tensor=2, sequence_parallel=True),
    "CP2xPP2": Layout(microbatch=2, context=2, pipeline=2),
    "CP2xPP2 interleaved": Layout(microbatch=2, context=2, pipeline=2, virtual=2),
    "CP2xDP2": Layout(microbatch=2, context=2, data=2),
    "CP2xDP2 distributed optimizer": Layout(microbatch=2, context=2, data=2, distributed_optimizer=True),
    "CP2xDP2 full sharding": Layout(microbatch=2, context=2, data=2, full_sharding=True),
    "CP2xTP2+SPxPP2": Layout(microbatch=4, context=2, tensor=2, pipeline=2, sequence_parallel=True),
}
FAMILIES = {
    "bert": ("CP2", "CP4", "CP2xTP2+SP"),
    "albert": ("CP2xPP2",),
    "ernie-2": ("CP2",),
    "grouped-queries": ("CP2", "CP2xTP2"),
    "unilm": ("CP2",),
    "transformer": ("CP2xTP2+SP",),
    "t5": ("CP2", "CP2 recompute", "CP2xTP2+SP", "CP2xPP2 interleaved", "CP2xDP2 full sharding"),
    "bart": ("CP2xPP2",),
    "palm": ("CP2xTP2+SP",),
    "gpt3-banded": ("CP2", "CP2xPP2"),
    "gemma2": ("CP2",),
    "t5gemma": ("CP2",),
}
"""Families with target positions and a pooled head, shared layers, task ids, rotary positions and few key heads, an
attention order, sinusoids, score biases and cross-attention, tied tables, parallel sub-layers, windows."""
DRILLS = {
    *(("gpt2", name) for name in ("CP2xTP2+SPxPP2", "CP2xPP2", "CP2xDP2", "CP2xTP2", "CP2 distributed optimizer")),
    *(("gpt2", "CP2 full sharding"), ("bert", "CP2"), ("grouped-queries", "CP2"), ("t5", "CP2")),
}
"""Cases that others outside the drills contain."""
CASES = [
    *(("gpt2", name) for name in LAYOUTS),
    *((family, name) for family, names in FAMILIES.items() for name in names),
]


@cache
def alone(family: str) -> dict[str, Any]:
    """Return the results of one process."""
    results: dict[str, Any] = run_ranks(1, train_steps, family, Layout(microbatch=2))[0]
    return results


def assert_equal(results: list[dict[str, Any]], family: str) -> None:
    for result in results:
        for part in ("losses", "norms", "evaluation"):
            assert result[part] == pytest.approx(alone(family)[part], rel=1e-5)


@pytest.mark.parametrize(
    ("family", "name"),
    [pytest.param(*case, marks=[pytest.mark.drill] if case in DRILLS else []) for case in CASES],
)
def test_context_ranks_change_no_result(family: str, name: str) -> None:
    layout = LAYOUTS[name]
    assert_equal(run_ranks(layout.processes, train_steps, family, layout), family)


def train_by_offsets(family: str, layout: Layout) -> dict[str, Any]:
    with flash_on_cpu() as calls:
        results = train_steps(family, layout)
    return results | {"calls": len(calls.forward)}


@pytest.mark.parametrize("family", ["gpt2", "grouped-queries", "bert", "transformer", "gpt3-banded", "modernbert"])
def test_offsets_of_context_ranks_change_no_result(family: str) -> None:
    """Attention by offsets of documents, as on GPUs, equals dense masks in one process."""
    layout = LAYOUTS["CP2"]
    results = run_ranks(layout.processes, train_by_offsets, family, layout)
    assert sum(result["calls"] for result in results) > 0
    assert_equal(results, family)
