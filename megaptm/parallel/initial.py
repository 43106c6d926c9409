"""Initial weights of a model before the first training step.

A model may start from one of another kind: an encoder from a decoder or back, or both stacks of an encoder-decoder
from one. `run.initial` has the properties that must be equal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator

import torch
from torch import Tensor

from megaptm.checkpoint.tensors import TensorReader
from megaptm.errors import UserError
from megaptm.models.initial import initial_values
from megaptm.parallel.full_sharding import write_parameter
from megaptm.parallel.stage import Stage
from megaptm.spec import ModelSpec

WEIGHT = "weight/"
"""Prefix of the names of weights in checkpoints."""
Initializer = Callable[[str, Tensor], Tensor]
"""Function from name and default initial value of a parameter to its initial value."""
TOKEN_HEADS = ("lm", "mlm")
"""Heads that predict tokens. A head of one kind may start from a head of the other."""
TOKEN_TABLE = "embed.token.weight"


@torch.no_grad()
def init_weights(stage: Stage, *, seed: int, initializer: Initializer | None = None) -> None:
    """Set every parameter to its initial value: the default, or the result of `initializer`."""
    placed = list(stage.placed_parameters())
    values = initial_values(stage.model.spec, ((each.name, each.shape) for each, _ in placed), seed)
    for (placement, parameter), value in zip(placed, values, strict=True):
        if initializer is not None:
            value = initializer(placement.name, value)
        write_parameter(parameter, placement.local_part(value, tuple(parameter.shape)))


def checkpoint_initializer(reader: TensorReader, spec: ModelSpec) -> Initializer:
    """Return an initializer that reads the weights of a model from a checkpoint of the same model, or of one from whose
    weights it can start. Parameters without a source there keep their default."""
    names = {name.removeprefix(WEIGHT) for name in reader.names() if name.startswith(WEIGHT)}

    def initializer(name: str, default: Tensor) -> Tensor:
        if (source := _find_source(name, names)) is None:
            return default
        value = reader.read(f"{WEIGHT}{source}")
        if (part := _joined_part(name, source)) is not None:
            by_head = value.unflatten(0, (-1, 3, spec.size_of(name.partition(".")[0]).key_width))
            value = by_head[:, part].flatten(0, 2)
        if value.shape != default.shape:
            raise UserError(
                f"train.init_from: {source} has the shape {[*value.shape]} in the checkpoint and {[*default.shape]} in "
                "this run. Make them equal, or remove train.init_from."
            )
        return value

    return initializer


def _find_source(name: str, available: Collection[str]) -> str | None:
    """Return the name of the other model's parameter from which a parameter starts. None: the initial value is random.

    The name is usually the same. If the other model lacks it, it may be:

    - for a stack: the name in the other model's only stack;
    - for cross-attention: self-attention, also a part of joint projections of queries, keys and values
      (`attention.qkv`);
    - for a head or token table: the other model's head or token table.
    """
    return next((candidate for candidate in _candidates(name, available) if candidate in available), None)


def _candidates(name: str, available: Collection[str]) -> Iterator[str]:
    stacks = {other.partition(".")[0] for other in available} - {"embed", "head"}
    stack = name.partition(".")[0]
    if stack not in {*stacks, "embed", "head"} and len(stacks) == 1:
        name = f"{next(iter(stacks))}.{name.partition('.')[2]}"
    yield name
    # The projections of cross-attention, and its norms: `cross_norm`, `cross_output_norm`.
    own = re.sub(r"\.cross(?=[._])", ".attention", name, count=1)
    yield own
    yield re.sub(r"\.(query|kv)\.", ".qkv.", own)
    if match := re.fullmatch(r"head\.(\w+)\.(.+)", name):
        yield from (f"head.{other}.{match[2]}" for other in TOKEN_HEADS if match[1] in TOKEN_HEADS)
    if re.fullmatch(r"embed\.\w+_token\.weight|head\.\w+\.table\.weight", name):
        yield TOKEN_TABLE


def _joined_part(name: str, source: str) -> slice | None:
    """Return which of queries, keys and values of its source a parameter takes; None: the source is of the same
    kind."""
    if ".cross." not in name or ".qkv." not in source:
        return None
    return slice(0, 1) if ".query." in name else slice(1, 3)
