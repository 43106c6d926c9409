"""Initial weights of a model before the first training step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from megaptm.checkpoint.tensors import TensorReader
from megaptm.errors import UserError
from megaptm.models.initial import initial_values
from megaptm.parallel.full_sharding import write
from megaptm.parallel.stage import Stage
from megaptm.spec import ModelSpec
from megaptm.spec.adaptation import find_source, takes_part

WEIGHT = "weight/"
"""Prefix of the names of weights in checkpoints."""
Initializer = Callable[[str, Tensor], Tensor]
"""Function from name and default initial value of a parameter to its initial value."""


@torch.no_grad()
def fill(stage: Stage, *, seed: int, initializer: Initializer | None = None) -> None:
    """Set every parameter to its initial value: the default, or the result of `initializer`."""
    placed = list(stage.placed_parameters())
    values = initial_values(stage.model.spec, ((each.name, each.shape) for each, _ in placed), seed)
    for (placement, parameter), value in zip(placed, values, strict=True):
        if initializer is not None:
            value = initializer(placement.name, value)
        write(parameter, placement.local_part(value, tuple(parameter.shape)))


def checkpoint_initializer(reader: TensorReader, spec: ModelSpec) -> Initializer:
    """Return an initializer that reads the weights of a model from a checkpoint of the same model, or of one from whose
    weights it can start (`spec.adaptation`). Parameters without a source there keep their default."""
    names = {name.removeprefix(WEIGHT) for name in reader.names() if name.startswith(WEIGHT)}

    def initializer(name: str, default: Tensor) -> Tensor:
        if (source := find_source(name, names)) is None:
            return default
        value = reader.read(f"{WEIGHT}{source}")
        if (part := takes_part(name, source)) is not None:
            by_head = value.unflatten(0, (-1, 3, spec.size_of(name.partition(".")[0]).key_width))
            value = by_head[:, part].flatten(0, 2)
        if value.shape != default.shape:
            raise UserError(
                f"train.init_from: {source} has the shape {[*value.shape]} in the checkpoint and {[*default.shape]} in "
                "this run. Make them equal, or remove train.init_from."
            )
        return value

    return initializer
