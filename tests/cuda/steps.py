"""`python -m tests.cuda.steps NAME ...`: the second training step of a rank, on a GPU that is simulated. Prints as JSON
where the host waited for the device, which messages were sent, which kernels were launched, and which kernels have no
deterministic form."""

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
from megaptm.distillation import hook
from megaptm.parallel.full_sharding import FullySharded
from megaptm.parallel import build, collectives, document_offsets, dry_run, model, stage
from megaptm.parallel.optimizers import matrix_exchange
from tests.cuda.cases import CASES, Case
from tests.layouts.cases import LENGTH, batch, losses_of

T = TypeVar("T")


class Weights:
    """Checkpoint that has any requested tensor."""

    def names(self) -> list[str]:
        return []

    def read(self, name: str, offset: tuple[int, ...], block: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(block)


def second_step(case: Case) -> dict[str, dict[str, int]]:
    """Return the counters of the second step; the first step builds kernels and moments."""
    rows, fields, spec = case.layout.microbatch, fields_of(case), case.spec
    with (
        dry_run._fake_process_group(case.layout, case.rank),
        FakeTensorMode(allow_non_fake_inputs=True),
        pretend.Waits(),
    ):
        built = build.build_engine(
            spec,
            case.layout,
            case.optimizer,
            losses=losses_of(case.family),
            seed=1,
            precision="bf16",
            global_tokens="global_tokens" in fields,
            hooks=hooks_of(case),
        )
        for step in range(2):
            pretend.clear()
            batches = [
                {name: field[at * rows :][:rows].clone().pin_memory() for name, field in fields.items()}
                for at in range(case.microbatches)
            ]
            built.set_loss_weights(losses_of(case.family))
            built.train_step(batches, step=step, lr=1e-3)
            collectives.any_rank(False)
    return {
        name: dict(getattr(pretend, name)) for name in ("waits", "messages", "refused", "kernels", "traffic", "pairs")
    }


def hooks_of(case: Case) -> list[hook.DistillationHook]:
    weights: Any = Weights()
    return [] if case.distillation is None else [hook.DistillationHook(case.distillation, weights)]


def fields_of(case: Case) -> dict[str, torch.Tensor]:
    """Return a batch, with teacher logits if they are cached."""
    fields = batch(case.family, 0)
    if not case.documents:
        fields = {name: field for name, field in fields.items() if not name.endswith("document_ids")}
    if case.taught != "by kept logits":
        return fields
    shape = (*fields[f"{[*case.spec.family.prefixes.values()][-1]}tokens"].shape, 3)
    return fields | {
        "teacher_ids": torch.zeros(shape, dtype=torch.int32),
        "teacher_logits": torch.zeros(shape, dtype=torch.float16),
    }


def build_stages(*args: Any, **kwargs: Any) -> list[stage.Stage]:
    """Build stages as `stage.build_stages` does: the model is built without a device, and its memory is fake."""
    mode = active_fake_mode()
    assert mode is not None

    def to_empty(model: Model, *, device: torch.device) -> None:
        made: dict[int, nn.Parameter] = {}
        with mode:
            for module in model.modules():
                for name, parameter in module._parameters.items():
                    if parameter is not None and id(parameter) not in made:
                        memory = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
                        made[id(parameter)] = nn.Parameter(memory, requires_grad=parameter.requires_grad)
                    if parameter is not None:
                        module._parameters[name] = made[id(parameter)]

    def shard(sharded: FullySharded, model: Model) -> None:
        with mode:
            divide(sharded, model)

    divide = FullySharded.__init__
    with (
        unset_fake_temporarily(),
        patch.object(Model, "to_empty", to_empty),
        patch.object(FullySharded, "__init__", shard),
    ):
        return stage.build_stages(*args, **kwargs)


def gather_nothing(out: list[Any], value: Any, group: Any = None) -> None:
    out[:] = [[] for _ in out]


def offsets_of(documents: torch.Tensor, *memory: torch.Tensor) -> torch.Tensor:
    """Return memory for the offsets of four documents a sequence: the host has no numbers to compute them from."""
    return torch.empty(*(2,) * len(memory), 4 * len(documents) + 1, dtype=torch.int32)


def offsets_of_chunks(
    documents: torch.Tensor, _: torch.Tensor, chunks: tuple[range, range], **__: bool
) -> torch.Tensor:
    return torch.empty(2 * len(chunks), 4 * len(documents) + 1, dtype=torch.int32)


def run_in_this_thread(work: Callable[[], T]) -> T:
    return work()


def patch_models() -> None:
    for module in (model, hook):
        replaced: Any = module
        replaced.build_stages = build_stages
    patched: Any = hook
    patched.run_on_all_ranks = run_in_this_thread  # tensors are fake in this thread only
    patched = document_offsets
    patched.document_offsets = patched.cross_offsets = offsets_of
    patched.context_offsets = offsets_of_chunks
    patched = matrix_exchange
    patched.gather_pieces = lambda pieces, group: [pieces] * group.size()
    dist.all_gather_object = gather_nothing


if __name__ == "__main__":
    patch_models()
    pretend.num_positions = LENGTH
    print(json.dumps({name: second_step(CASES[name]) for name in sys.argv[1:]}))
