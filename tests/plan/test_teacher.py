"""Planned costs of a teacher: its weights, and FLOPs as torch counts them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from megaptm.config import Layout, load_config
from megaptm.distillation.costs import TeacherCosts
from megaptm.distillation.losses import add_distillation_losses
from megaptm.distillation.spec import Distillation
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.plan.machine import load_machine
from megaptm.plan.memory import estimate_memory
from megaptm.plan.step import estimate_step
from megaptm.plan.workload import Workload, make_workload
from megaptm.spec import ModelSpec, Size, change, published_spec
from tests.models.students import distilled_losses
from tests.models.tiny import tiny_batch, tiny_spec


def counted_flops(spec: ModelSpec, distillation: Distillation | None) -> int:
    """Return the FLOPs of a forward and backward pass of a student, and of its teacher if there is one."""
    student, teacher = Model(spec), None
    if distillation is not None:
        add_distillation_losses(student, distillation)
        teacher = Model(distillation.teacher)
        init_weights(teacher, seed=8)
        teacher.requires_grad_(False).keep_layers(distillation.compared_teacher_layers())
    init_weights(student, seed=7)
    batch = tiny_batch("bert")
    batch["document_ids"] = torch.ones_like(batch["document_ids"])  # the CPU skips positions without labels
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        losses = student(batch).losses if teacher is None else distilled_losses(student, teacher, batch)
        sum(loss for loss, _ in losses.values()).backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("hooks", [("logits",), ("embeddings", "hidden", "scores")])
def test_flops_equal_torch(hooks: tuple[str, ...]) -> None:
    spec = tiny_spec("tinybert")
    teacher_spec = replace(tiny_spec("bert", layers=4), size=Size(layers=4, width=48, heads=4, ffn=96))
    distillation = Distillation(
        teacher=teacher_spec,
        weights=dict.fromkeys(hooks, 1.0),
        layers={"encoder": (1, 3) if "hidden" in hooks else ()},
        projection="shared" if "hidden" in hooks else "none",
    )
    counted = counted_flops(spec, distillation) - counted_flops(spec, None)
    work = Workload(
        spec=spec,
        lengths={"encoder": 12},
        layout=Layout(microbatch=3),
        batch=3,
        precision="fp32",
    )
    # Vocabulary padding is projected, too: by the student three times, by the teacher once.
    padding = 2 * 36 * (spec.padded_vocabulary - spec.vocabulary) * (3 * spec.width + teacher_spec.width)
    assert counted == pytest.approx(TeacherCosts(distillation).flops(work) + padding * ("logits" in hooks), rel=0.01)


def test_memory_and_time_of_a_teacher() -> None:
    work = make_workload(load_config("configs/distilbert/base.yaml"))
    (teacher,) = work.extra_costs
    assert isinstance(teacher, TeacherCosts)
    with torch.device("meta"):
        built = Model(published_spec(change(teacher.distillation.teacher.family), "base"))
    parameters = teacher.count_parameters(work)
    assert parameters == sum(parameter.numel() for parameter in built.parameters())
    alone = replace(work, extra_costs=())
    (with_teacher,), (without_teacher,) = estimate_memory(work), estimate_memory(alone)
    assert with_teacher.total - without_teacher.total == with_teacher.extra["teacher"] >= 2 * parameters
    machine = load_machine("h100-80g")
    # With cached logits no teacher is held, and none computes logits.
    cached_costs = TeacherCosts(replace(teacher.distillation, cached=True, weights={"logits": 5.0}))
    cached = replace(work, extra_costs=(cached_costs,))
    (with_cached,) = estimate_memory(cached)
    assert 0 < with_cached.extra["teacher"] < with_teacher.extra["teacher"] - 2 * parameters
    assert cached_costs.flops(cached) < 0.5 * teacher.flops(work)
    assert (
        estimate_step(machine, alone).seconds
        < estimate_step(machine, cached).seconds
        < estimate_step(machine, work).seconds
    )
    assert estimate_step(machine, work).seconds > 1.3 * estimate_step(machine, alone).seconds
