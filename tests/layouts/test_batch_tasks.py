"""Steps with labels of different heads: heads without labels in a step do not run, and no layout changes a result.

One process trains on batches in which the labels of other heads are ignored. Layouts train on batches without these
labels, also with overlapped gradient reduction, and give the same losses and norms.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from megaptm.batch import IGNORED
from megaptm.config import CommunicationConfig, Layout
from megaptm.models.head_costs import HEADS
from tests.engines import filled_engine
from tests.layouts.cases import ADAM, batch, losses_of, micro_batches, tiny
from tests.models.regions import UNITER_ALL_HEADS
from tests.ranks import run_ranks

LABELS = ("matched", "labels", "masked_region_features", "region_distributions", "labels", "matched", "region_labels")
"""Labels of each step. megatron-core learns the order of gradients from the first steps."""
ALL_LABELS = {HEADS[name].label_field for name in UNITER_ALL_HEADS.heads}
LAYOUTS = {
    "alone": Layout(microbatch=2),
    "DP2": Layout(microbatch=2, data=2),
    "DP2 distributed optimizer": Layout(microbatch=2, data=2, distributed_optimizer=True),
    "DP2 full sharding": Layout(microbatch=2, data=2, full_sharding=True),
    "TP2": Layout(microbatch=2, tensor=2),
    "PP2": Layout(microbatch=2, pipeline=2),
    "PP2xDP2 distributed optimizer": Layout(microbatch=2, pipeline=2, data=2, distributed_optimizer=True),
}
OVERLAPPED = ("DP2", "DP2 distributed optimizer", "PP2xDP2 distributed optimizer")
CASES = [*((name, False) for name in LAYOUTS), *((name, True) for name in OVERLAPPED)]


def train(layout: Layout, overlaps: bool, all_fields: bool) -> dict[str, Any]:
    """Return the losses, norms and executed heads of each step. Runs in a rank."""
    communication = CommunicationConfig(overlap_grad_reduce=overlaps)
    engine = filled_engine(
        tiny("uniter"), layout, ADAM, losses=losses_of("uniter"), seed=7, communication=communication
    )
    heads_run: list[set[str]] = []
    for stage in engine.model.stages:
        for name, head in {} if stage.model.head is None else stage.model.head.items():
            count_runs(head, name, heads_run)
    recorded: dict[str, Any] = {"losses": [], "norms": [], "ran": heads_run}
    for step, label in enumerate(LABELS):
        heads_run.append(set())
        fields = batch("uniter", step)
        for field in ALL_LABELS - {label}:
            fields[field] = torch.full_like(fields[field], IGNORED)
        if not all_fields:
            fields = {field: value for field, value in fields.items() if field not in ALL_LABELS - {label}}
        batches = micro_batches(fields, layout, engine.ranks.data) if engine.ranks.tensor == 0 else None
        result = engine.train_step(batches, step=step, lr=ADAM.lr)
        recorded["losses"].append(result.loss)
        recorded["norms"].append(result.gradient_norm)
        assert {name for name, count in result.counts.items() if count} == heads_of(label)
    return recorded


def count_runs(head: torch.nn.Module, name: str, heads_run: list[set[str]]) -> None:
    original = head.loss

    def loss(*arguments: Any, **options: Any) -> Any:
        heads_run[-1].add(name)
        return original(*arguments, **options)

    head.loss = loss


def heads_of(label: str) -> set[str]:
    return {name for name in UNITER_ALL_HEADS.heads if HEADS[name].label_field == label}


@cache
def with_all_heads() -> dict[str, Any]:
    [expected] = run_ranks(1, train, Layout(microbatch=2), False, True)
    assert expected["ran"] == [{*UNITER_ALL_HEADS.heads}] * len(LABELS)
    return expected


@pytest.mark.parametrize(("name", "overlaps"), CASES)
def test_heads_without_labels_do_not_run(name, overlaps):
    layout, expected = LAYOUTS[name], with_all_heads()
    for actual in run_ranks(layout.processes, train, layout, overlaps, False):
        assert actual["losses"] == pytest.approx(expected["losses"], rel=1e-5)
        assert actual["norms"] == pytest.approx(expected["norms"], rel=1e-5)
        # Only the last stage has heads.
        assert actual["ran"] in ([heads_of(label) for label in LABELS], [set()] * len(LABELS))
