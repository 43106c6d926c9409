"""Teacher of a run: a full model on the layout's tensor ranks that reads each micro-batch and is not trained."""

from __future__ import annotations

import torch
from torch import Tensor

from megaptm.bricks.kernels import AUTO
from megaptm.checkpoint.tensors import TensorReader
from megaptm.config import CommunicationConfig, Layout
from megaptm.errors import UserError
from megaptm.models.model import Model
from megaptm.parallel.background import together
from megaptm.parallel.groups import Ranks
from megaptm.parallel.initial import InitialFrom
from megaptm.parallel.stage import build_stages, transformer_config
from megaptm.spec import Distillation


@torch.no_grad()
def build_teacher(
    distillation: Distillation,
    layout: Layout,
    ranks: Ranks,
    *,
    precision: str,
    reader: TensorReader,
    marks: bool = False,
    kernel: str = AUTO,
) -> Model:
    """Return this rank's part of the teacher, frozen, with the weights of a checkpoint of any layout."""
    spec, layout = distillation.teacher, layout.model_copy(update={"recompute": "none"})
    config = transformer_config(spec, layout, CommunicationConfig(), precision, _nothing)
    (stage,) = build_stages(spec, layout, ranks, config, losses=(), marks=marks, kernel=kernel)

    def read() -> None:
        with torch.no_grad():  # grad mode is per thread
            for place, parameter in stage.placed_parameters():
                parameter.copy_(reader.read(f"weight/{place.name}", place.offset, tuple(parameter.shape)))

    together(read)  # a failure to read on one rank is raised on all
    teacher: Model = stage.model
    teacher.keep_layers(distillation.read_of_teacher())
    return teacher.requires_grad_(False).eval()


def _nothing(*_: object, **__: object) -> None:
    """Ignore the teacher's gradients."""


def slice_of_teacher(distillation: Distillation, reader: TensorReader) -> InitialFrom:
    """Return a function from a parameter's name and usual initial value to the teacher's value: from its tables, heads
    and chosen layers. Tables are cut to their first rows.

    Parameters that the teacher does not have get their usual value.
    """
    kept = {*reader.names()}

    def initial_from_teacher(name: str, usual: Tensor) -> Tensor:
        stack, _, rest = name.partition(".")
        number, _, leaf = rest.partition(".")
        if stack in distillation.layers and number.isdecimal():
            name = f"{stack}.{distillation.initial[int(number)]}.{leaf}"
        if f"weight/{name}" not in kept:
            return usual
        theirs = reader.read(f"weight/{name}")
        if theirs.shape[1:] != usual.shape[1:] or len(theirs) < len(usual):
            raise UserError(
                f"distill.initial_layers: {name} of the teacher is {[*theirs.shape]}, and the student's "
                f"{[*usual.shape]}: make them equal, or leave distill.initial_layers out."
            )
        return theirs[: len(usual)]

    return initial_from_teacher
