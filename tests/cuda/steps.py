"""`python -m tests.cuda.steps NAME ...`: the second training step of a layout's rank on a GPU that is not there; prints
where the host waited for it, which messages were sent, and which kernels launched, as JSON."""

# ruff: noqa: E402, I001

from __future__ import annotations

import json
import sys
from typing import Any

from tests.cuda import pretend

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

pretend.install()

from megaptm.config import Layout
from megaptm.layers.attention import PatternAttend
from megaptm.layers.layer import Stack
from megaptm.parallel import dry, engine, stage
from megaptm.parallel import collectives
from megaptm.parallel.groups import Ranks
from megaptm.spec import ModelSpec
from megatron.core.transformer import TransformerConfig
from tests.cuda.cases import CASES, Case
from tests.layouts.cases import batch, losses_of, tiny


def second_step(case: Case) -> dict[str, dict[str, int]]:
    """What the host waited for; in the first step kernels are built and moments made."""
    rows, fields = case.layout.microbatch, batch(case.family, 0)
    with dry._world(case.layout, case.rank), FakeTensorMode(allow_non_fake_inputs=True), pretend.Waits():
        built = engine.Engine(
            tiny(case.family, dropout=0.1, layers=case.layers),
            case.layout,
            case.optimizer,
            losses=losses_of(case.family),
            seed=1,
            precision="bf16",
            filled=False,
            marks="global_tokens" in fields,
        )
        for step in range(2):
            pretend.waits.clear()
            pretend.messages.clear()
            pretend.kernels.clear()
            batches = [{name: field[at * rows :][:rows].clone() for name, field in fields.items()} for at in range(2)]
            built.weigh(built.losses)
            built.step(batches, step=step, lr=1e-3)
            collectives.any_rank(False)
    return {"waits": dict(pretend.waits), "messages": dict(pretend.messages), "kernels": dict(pretend.kernels)}


def build_stages(
    spec: ModelSpec,
    layout: Layout,
    ranks: Ranks,
    config: TransformerConfig,
    *,
    losses: object,
    marks: bool,
    kernel: str,
    distillation: object = None,
) -> list[stage.Stage]:
    """As `stage.build_stages`, but on the device at once: a fake tensor cannot move there."""
    with torch.device("cuda"):
        stages = dry._stages(spec, layout, "bf16", ranks)
    for module in (module for one in stages for module in one.modules()):
        if hasattr(module, "config"):
            module.config = config
        if isinstance(module, Stack | PatternAttend):
            module.kernel = kernel
        if layout.recompute == "full" and isinstance(module, Stack):
            module.run_layer = stage.recompute
    return stages


def nothing_of_others(out: list[Any], value: Any, group: Any = None) -> None:
    out[:] = [[] for _ in out]


def pretend_more() -> None:
    replaced: Any = engine
    replaced.build_stages = build_stages
    dist.all_gather_object = nothing_of_others


if __name__ == "__main__":
    pretend_more()
    print(json.dumps({name: second_step(CASES[name]) for name in sys.argv[1:]}))
