"""`python -m tests.cuda.steps NAME ...`: the second training step of a layout's rank on a GPU that is not there; prints
where the host waited for it, which messages were sent, which kernels launched, and which of them have no deterministic
form, as JSON."""

# ruff: noqa: E402, I001

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, TypeVar
from unittest.mock import patch

from tests.cuda import pretend

import torch
import torch.distributed as dist
from torch import nn
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

pretend.install()

from megaptm.models.model import Model
from megaptm.parallel import collectives, dry, engine, stage, teacher
from tests.cuda.cases import CASES, Case
from tests.layouts.cases import batch, losses_of

T = TypeVar("T")


class Weights:
    """Of a checkpoint whose tensors are whatever is asked for."""

    def names(self) -> list[str]:
        return []

    def read(self, name: str, offset: tuple[int, ...], block: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(block)


def second_step(case: Case) -> dict[str, dict[str, int]]:
    """What the host waited for; in the first step kernels are built and moments made."""
    rows, fields, spec = case.layout.microbatch, fields_of(case), case.spec
    weights: Any = Weights()
    with dry._world(case.layout, case.rank), FakeTensorMode(allow_non_fake_inputs=True), pretend.Waits():
        built = engine.Engine(
            spec,
            case.layout,
            case.optimizer,
            losses=losses_of(case.family),
            seed=1,
            precision="bf16",
            filled=False,
            marks="global_tokens" in fields,
            distillation=case.distillation,
            teacher=weights if case.taught == "by a teacher" else None,
        )
        for step in range(2):
            pretend.clear()
            batches = [
                {name: field[at * rows :][:rows].clone().pin_memory() for name, field in fields.items()}
                for at in range(case.microbatches)
            ]
            built.weigh(losses_of(case.family))
            built.step(batches, step=step, lr=1e-3)
            collectives.any_rank(False)
    return {name: dict(getattr(pretend, name)) for name in ("waits", "messages", "refused", "kernels")}


def fields_of(case: Case) -> dict[str, torch.Tensor]:
    """A batch, with a teacher's logits where they are kept."""
    fields = batch(case.family, 0)
    if case.taught != "by kept logits":
        return fields
    shape = (*fields[f"{[*case.spec.family.prefixes.values()][-1]}tokens"].shape, 3)
    return fields | {
        "teacher_ids": torch.zeros(shape, dtype=torch.int32),
        "teacher_logits": torch.zeros(shape, dtype=torch.float16),
    }


def build_stages(*args: Any, **kwargs: Any) -> list[stage.Stage]:
    """As `stage.build_stages`, whose model is built on no device, and then gets memory: what it gets is fake."""
    mode = active_fake_mode()
    assert mode is not None

    def to_empty(model: Model, *, device: torch.device) -> None:
        made: dict[int, nn.Parameter] = {}
        with mode:
            for module in model.modules():
                for name, one in module._parameters.items():
                    if one is not None and id(one) not in made:
                        memory = torch.empty(one.shape, dtype=one.dtype, device=device)
                        made[id(one)] = nn.Parameter(memory, requires_grad=one.requires_grad)
                    if one is not None:
                        module._parameters[name] = made[id(one)]

    with unset_fake_temporarily(), patch.object(Model, "to_empty", to_empty):
        return stage.build_stages(*args, **kwargs)


def nothing_of_others(out: list[Any], value: Any, group: Any = None) -> None:
    out[:] = [[] for _ in out]


def here(work: Callable[[], T]) -> T:
    return work()


def pretend_more() -> None:
    for module in (engine, teacher):
        replaced: Any = module
        replaced.build_stages = build_stages
    reading: Any = teacher
    reading.together = here  # tensors are fake in this thread alone
    dist.all_gather_object = nothing_of_others


if __name__ == "__main__":
    pretend_more()
    print(json.dumps({name: second_step(CASES[name]) for name in sys.argv[1:]}))
