"""State of an engine - weights and optimizer state - as named pieces of full tensors.

- `weight/<parameter>`: float32; the master copy if the model runs in bf16.
- Optimizer state of a weight: `exp_avg/<parameter>`, `exp_avg_sq/<parameter>` of AdamW.
- `memory/<stack>.<layer>`: recurrence cache, by sample of the global batch.

Names and shapes are the same for every layout, so that any layout reads checkpoints of any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from megaptm.checkpoint.boxes import Box, span_boxes
from megaptm.checkpoint.tensors import TensorPiece, TensorReader
from megaptm.parallel.optimizers import RULES, StateTensor, TensorPart, set_steps

if TYPE_CHECKING:
    from megaptm.parallel.engine import Engine


def pieces(engine: Engine) -> Iterator[TensorPiece]:
    """Yield the pieces that this process writes; each element of each tensor is written by exactly one process."""
    for part in engine.optimizer.parts:
        if getattr(part.parameter, "shared", False):
            continue
        yield from _slices(engine, part)
        for kind, tensor in _state_tensors(engine, part).items():
            if tensor.like != "weight" and _writes_factor(engine, part, tensor):
                shape, box = _factor(part, tensor)
                data = _remembered(engine, part, kind, tensor, box.shape)
                yield TensorPiece(f"{kind}/{part.place.name}", shape, box.offset, box.shape, data)
    for chunk, memory in enumerate(engine.memories):
        yield from memory.pieces(engine.ranks, first=engine.ranks.pipeline == 0 and chunk == 0)


def restore(engine: Engine, reader: TensorReader, *, step: int) -> None:
    """Restore weights, optimizer state and recurrence caches from a checkpoint of any layout, written after `step`
    updates."""
    with torch.no_grad():
        for part in engine.optimizer.parts:
            place = part.place
            weight = reader.read(f"weight/{place.name}", place.offset, tuple(part.parameter.shape))
            part.parameter.copy_(weight)
            if part.master is not None:
                part.master.copy_(weight if part.span is None else weight.reshape(-1)[slice(*part.span)])
            if step > 0:  # an imported model, at step 0, has only weights
                for kind, tensor in _state_tensors(engine, part).items():
                    if tensor.like != "weight" or part.master is not None:
                        known = _read(reader, part, kind, tensor).to(part.key.device, copy=True)
                        engine.optimizer.rule.state[part.key][kind] = known
    for memory in engine.memories:
        memory.restore(reader, engine.ranks)
    if step > 0:
        set_steps(engine.optimizer.rule, engine.optimizer.parts, step)


def _state_tensors(engine: Engine, part: TensorPart) -> Mapping[str, StateTensor]:
    """Return the optimizer state tensors of a part; none if it is not trained."""
    settings = engine.optimizer.settings
    return RULES[settings.name].remembers(settings, part) if part.parameter.requires_grad else {}


def _slices(engine: Engine, part: TensorPart) -> Iterator[TensorPiece]:
    """Yield the weight, and state with one value per element of it."""
    place, ranks = part.place, engine.ranks
    if (place.axis is None and ranks.tensor > 0) or (part.span is None and ranks.data > 0):
        return
    if part.master is None and part.span is not None:
        return  # another data rank holds it
    held = {"weight": part.parameter if part.master is None else part.master}
    for kind, tensor in _state_tensors(engine, part).items():
        if tensor.like == "weight":
            held[kind] = _remembered(engine, part, kind, tensor, tuple(held["weight"].shape))
    for kind, values in held.items():
        data = values.detach().float()
        yield TensorPiece(
            name=f"{kind}/{place.name}",
            shape=place.shape,
            offset=place.offset,
            block=tuple(part.parameter.shape),
            data=data.reshape(-1) if part.span else data,
            span=part.span,
        )


def _remembered(engine: Engine, part: TensorPart, kind: str, tensor: StateTensor, shape: tuple[int, ...]) -> Tensor:
    """Return a state tensor of the rule, or its initial value before the first step."""
    found: Tensor | None = engine.optimizer.rule.state.get(part.key, {}).get(kind)
    return torch.full(shape, tensor.start, device=part.key.device) if found is None else found


def _writes_factor(engine: Engine, part: TensorPart, tensor: StateTensor) -> bool:
    """Whether this process writes row or column state. Data ranks have copies, and so have tensor ranks, unless they
    divide this axis."""
    divided = part.place.axis == (0 if tensor.like == "rows" else 1)
    return engine.ranks.data == 0 and (divided or engine.ranks.tensor == 0)


def _factor(part: TensorPart, tensor: StateTensor) -> tuple[tuple[int, ...], Box]:
    """Return the shape of row or column state of the full tensor, and the box that this rank holds."""
    if tensor.like == "rows":
        return (part.place.shape[0],), Box((part.place.offset[0],), (part.length,))
    offset = part.place.offset[1] if part.place.axis == 1 else 0
    return (part.matrices, part.whole_width), Box((0, offset), (part.matrices, part.width))


def _read(reader: TensorReader, part: TensorPart, kind: str, tensor: StateTensor) -> Tensor:
    """Read the elements of a tensor that this rank holds: with many data ranks a small part of the slice."""
    name, shape = f"{kind}/{part.place.name}", tuple(part.parameter.shape)
    if tensor.like != "weight":
        _, box = _factor(part, tensor)
        return reader.read(name, box.offset, box.shape)
    if part.span is None:
        return reader.read(name, part.place.offset, shape)
    boxes = [box.moved(part.place.offset) for box in span_boxes(shape, *part.span)]
    parts = [reader.read(name, box.offset, box.shape).reshape(-1) for box in boxes]
    return torch.cat(parts) if len(parts) != 1 else parts[0]
