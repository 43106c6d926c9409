"""Losses of students."""

from __future__ import annotations

from torch import Tensor

from megaptm.distillation.losses import DistillationLosses
from megaptm.models.loss import Loss
from megaptm.models.model import Model


def distillation_of(student: Model) -> DistillationLosses:
    """Return the module with the losses with respect to the teacher."""
    module = student.get_submodule("distill")
    assert isinstance(module, DistillationLosses)
    return module


def distilled_losses(student: Model, teacher: Model, batch: dict[str, Tensor]) -> dict[str, Loss]:
    """Return the losses of a student: of its heads, and with respect to the teacher."""
    output = student(batch)
    return output.losses | distillation_of(student).losses(student, output.states, teacher, batch)
