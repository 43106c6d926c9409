"""Steps that each ask another question: heads that a step does not ask are left out of it, and no layout can tell.

What one process makes of batches that say of every question that nobody asks it, all others make of batches that have
no word of these questions; also where gradients are sent while others are still computed.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from megaptm.batch import IGNORED
from megaptm.bricks import HEADS
from megaptm.config import CommunicationConfig, Layout
from tests.layouts.cases import ADAM, batch, losses_of, micro_batches, tiny
from tests.models.regions import ALL
from tests.ranks import run_ranks

ASKED = ("matched", "labels", "hidden_features", "region_distributions", "labels", "matched", "region_labels")
"""By each step. The first ones are those that megatron-core learns the order of gradients from."""
ANSWERS = {HEADS[name].answers for name in ALL.heads}
LAYOUTS = {
    "alone": Layout(microbatch=2),
    "DP2": Layout(microbatch=2, data=2),
    "DP2 distributed optimizer": Layout(microbatch=2, data=2, distributed_optimizer=True),
    "TP2": Layout(microbatch=2, tensor=2),
    "PP2": Layout(microbatch=2, pipeline=2),
    "PP2xDP2 distributed optimizer": Layout(microbatch=2, pipeline=2, data=2, distributed_optimizer=True),
}
OVERLAPPED = ("DP2", "DP2 distributed optimizer", "PP2xDP2 distributed optimizer")
CASES = [*((name, False) for name in LAYOUTS), *((name, True) for name in OVERLAPPED)]


def train(layout: Layout, overlaps: bool, all_fields: bool) -> dict[str, Any]:
    """Losses, norms and heads that were run of each step, and what weights are in the end. Runs in a rank."""
    from megaptm.parallel.engine import Engine

    communication = CommunicationConfig(overlap_grad_reduce=overlaps)
    engine = Engine(tiny("uniter"), layout, ADAM, losses=losses_of("uniter"), seed=7, communication=communication)
    ran: list[set[str]] = []
    for stage in engine.stages:
        for name, head in {} if stage.model.head is None else stage.model.head.items():
            count_runs(head, name, ran)
    found: dict[str, Any] = {"losses": [], "norms": [], "ran": ran}
    for step, asked in enumerate(ASKED):
        ran.append(set())
        fields = batch("uniter", step)
        for field in ANSWERS - {asked}:
            fields[field] = torch.full_like(fields[field], IGNORED)
        if not all_fields:
            fields = {field: value for field, value in fields.items() if field not in ANSWERS - {asked}}
        batches = micro_batches(fields, layout, engine.ranks.data) if engine.ranks.tensor == 0 else None
        result = engine.step(batches, step=step, lr=ADAM.lr)
        found["losses"].append(result.loss)
        found["norms"].append(result.gradient_norm)
        assert {name for name, count in result.counts.items() if count} == heads_of(asked)
    return found


def count_runs(head: torch.nn.Module, name: str, ran: list[set[str]]) -> None:
    really = head.loss

    def loss(*arguments: Any, **options: Any) -> Any:
        ran[-1].add(name)
        return really(*arguments, **options)

    head.loss = loss


def heads_of(asked: str) -> set[str]:
    return {name for name in ALL.heads if HEADS[name].answers == asked}


@cache
def with_all_heads() -> dict[str, Any]:
    [found] = run_ranks(1, train, Layout(microbatch=2), False, True)
    assert found["ran"] == [{*ALL.heads}] * len(ASKED)
    return found


@pytest.mark.parametrize(("name", "overlaps"), CASES)
def test_heads_that_nothing_asks_are_left_out_and_no_number_changes(name, overlaps):
    layout, known = LAYOUTS[name], with_all_heads()
    for found in run_ranks(layout.processes, train, layout, overlaps, False):
        assert found["losses"] == pytest.approx(known["losses"], rel=1e-5)
        assert found["norms"] == pytest.approx(known["norms"], rel=1e-5)
        # On the last stage; the others have none.
        assert found["ran"] in ([heads_of(asked) for asked in ASKED], [set()] * len(ASKED))
