"""What a teacher costs: as many weights as it has, and the operations that torch counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from megaptm.config import Layout, load
from megaptm.models import Model, fill
from megaptm.plan import teacher
from megaptm.plan.machine import load_machine
from megaptm.plan.memory import estimate_memory
from megaptm.plan.step import estimate_step
from megaptm.plan.workload import Workload, make_workload
from megaptm.spec import Distillation, ModelSpec, Size, change, published
from tests.models.tiny import tiny_batch, tiny_spec


def flops_of(spec: ModelSpec, wanted: Distillation | None) -> int:
    """Of a pass of a student and back, with its teacher where it is asked something."""
    student = Model(spec, distillation=wanted)
    fill(student, seed=7)
    told = None
    if wanted is not None:
        told = Model(wanted.teacher)
        fill(told, seed=8)
        told.requires_grad_(False).keep_layers(wanted.read_of_teacher())
    batch = tiny_batch("bert")
    batch["document_ids"] = torch.ones_like(batch["document_ids"])  # the CPU leaves out rows that ask nothing
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        sum(loss for loss, _ in student(batch, teacher=told).values()).backward()  # type: ignore[union-attr]
    return counter.get_total_flops()


@pytest.mark.parametrize("hooks", [("logits",), ("embeddings", "hidden", "scores")])
def test_operations_are_those_that_torch_counts(hooks: tuple[str, ...]) -> None:
    spec = tiny_spec("tinybert")
    whole = replace(tiny_spec("bert", layers=4), size=Size(layers=4, width=48, heads=4, ffn=96))
    wanted = Distillation(
        teacher=whole,
        weights=dict.fromkeys(hooks, 1.0),
        layers={"encoder": (1, 3) if "hidden" in hooks else ()},
        projection="shared" if "hidden" in hooks else "none",
    )
    counted = flops_of(spec, wanted) - flops_of(spec, None)
    work = Workload(
        spec=spec,
        lengths={"encoder": 12},
        layout=Layout(microbatch=3),
        batch=3,
        precision="fp32",
        distillation=wanted,
    )
    # Rows that pad the vocabulary are projected, too: by the student three times, by the teacher once.
    padding = 2 * 36 * (spec.padded_vocabulary - spec.vocabulary) * (3 * spec.width + whole.width)
    assert counted == pytest.approx(teacher.teacher_flops(work) + padding * ("logits" in hooks), rel=0.01)


def test_a_rank_holds_the_teachers_weights() -> None:
    found = make_workload(load("configs/distilbert/base.yaml"))
    with torch.device("meta"):
        built = Model(published(change(found.distillation.teacher.family), "base"))  # type: ignore[union-attr]
    assert teacher.count_teacher_parameters(found) == sum(one.numel() for one in built.parameters())
    alone = replace(found, distillation=None)
    (taught,), (plain,) = estimate_memory(found), estimate_memory(alone)
    assert taught.total - plain.total == taught.teacher >= 2 * teacher.count_teacher_parameters(found)
    machine = load_machine("h100-80g")
    # Of one whose logits are read nothing is held but what is compared, and its words are projected by nobody.
    read = replace(found, distillation=replace(found.distillation, cached=True, weights={"logits": 5.0}))  # type: ignore[type-var]
    (spared,) = estimate_memory(read)
    assert 0 < spared.teacher - plain.teacher < taught.teacher - 2 * teacher.count_teacher_parameters(found)
    assert teacher.teacher_flops(read) < 0.5 * teacher.teacher_flops(found)
    assert (
        estimate_step(machine, alone).seconds
        < estimate_step(machine, read).seconds
        < estimate_step(machine, found).seconds
    )
    assert estimate_step(machine, found).seconds > 1.3 * estimate_step(machine, alone).seconds
