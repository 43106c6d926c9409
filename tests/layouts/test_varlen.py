"""Attention by offsets of documents in layouts: results equal those of the dense mask in one process."""

from functools import cache
from typing import Any

import pytest

from megaptm.config import Layout
from tests.layers.flash_on_cpu import flash_on_cpu
from tests.layouts.cases import KINDS, train_and_save, train_steps
from tests.ranks import run_ranks

LAYOUTS = {
    "recompute attention": Layout(microbatch=2, recompute="attention"),
    "TP2xPP2": Layout(microbatch=2, tensor=2, pipeline=2),
    "TP2+SPxPP2 recompute": Layout(microbatch=4, tensor=2, pipeline=2, sequence_parallel=True, recompute="full"),
}


def train_by_offsets(family: str, layout: Layout) -> dict[str, Any]:
    with flash_on_cpu() as calls:
        results = train_steps(family, layout)
    return results | {"calls": len(calls.forward)}


def resume_by_offsets(layout: Layout, folder: str, start: int, steps: int) -> dict[str, Any]:
    with flash_on_cpu():
        return train_and_save("gpt2", layout, folder, start, steps, dropout=0.2)


@cache
def with_dense_masks(family: str) -> dict[str, Any]:
    results: dict[str, Any] = run_ranks(1, train_steps, family, Layout(microbatch=2))[0]
    return results


@pytest.mark.parametrize(
    ("family", "name"),
    [
        pytest.param(family, name, marks=pytest.mark.drill if name == "TP2xPP2" and family != "gpt2" else [])
        for family in (*KINDS, "modernbert")
        for name in LAYOUTS
    ],
)
def test_layout_by_offsets_changes_no_result(family: str, name: str) -> None:
    layout = LAYOUTS[name]
    results = run_ranks(layout.processes, train_by_offsets, family, layout)
    assert sum(result["calls"] for result in results) > 0
    for result in results:
        for part in ("losses", "norms", "evaluation"):
            assert result[part] == pytest.approx(with_dense_masks(family)[part], rel=1e-5)


def test_recomputed_dropout_is_repeated(tmp_path) -> None:
    saved, recomputed = (
        run_ranks(1, resume_by_offsets, Layout(microbatch=4, recompute=recompute), str(tmp_path / recompute), 0, 2)[0]
        for recompute in ("none", "full")
    )
    assert recomputed == saved


def test_resume_by_offsets_is_bit_identical(tmp_path) -> None:
    layout = Layout(microbatch=4)
    full_run = run_ranks(1, resume_by_offsets, layout, str(tmp_path / "full"), 0, 4)[0]
    first = run_ranks(1, resume_by_offsets, layout, str(tmp_path / "parts"), 0, 2)[0]
    second = run_ranks(1, resume_by_offsets, layout, str(tmp_path / "parts"), 2, 2)[0]
    assert {part: first[part] + second[part] for part in full_run} == full_run
