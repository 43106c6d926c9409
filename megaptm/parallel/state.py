"""Weights and optimizer state of a run, as named pieces of full tensors in checkpoints.

- `weight/<parameter>`: float32; the master copy if the model runs in bf16.
- Optimizer state of a weight: `exp_avg/<parameter>`, `exp_avg_sq/<parameter>` of AdamW.

Names and shapes are the same for every layout, so that any layout reads checkpoints of any other.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from megaptm.checkpoint.boxes import Box, span_boxes
from megaptm.checkpoint.tensors import TensorPiece, TensorReader
from megaptm.parallel.full_sharding import is_sharded
from megaptm.parallel.groups import Ranks
from megaptm.parallel.optimizers import (
    EMA,
    Optimizer,
    ShardedOptimizer,
    StateTensor,
    TensorPart,
    set_steps,
    state_tensors,
)


def optimizer_pieces(optimizer: Optimizer, ranks: Ranks) -> Iterator[TensorPiece]:
    """Yield the pieces of weights and optimizer state that this rank writes; exactly one rank writes each element of
    each tensor."""
    optimizer.prepare_to_save()
    for part in optimizer.parts:
        if part.is_tied_copy:
            continue
        yield from _state_slices(optimizer, part, ranks)
        for kind, tensor in state_tensors(optimizer.settings, part).items():
            if tensor.like != "weight" and _writes_factor(part, tensor, ranks):
                shape, box = _factor_shape_and_box(part, tensor)
                data = _state_value(optimizer, part, kind, tensor, box.shape)
                yield TensorPiece(f"{kind}/{part.placement.name}", shape, box.offset, box.shape, data)


def restore_optimizer(optimizer: Optimizer, reader: TensorReader, *, step: int) -> None:
    """Restore weights and optimizer state from a checkpoint of any layout, written after `step` updates."""
    names = {*reader.names()} if optimizer.settings.ema_decay is not None else set()
    with torch.no_grad():
        for part in optimizer.parts:
            if is_sharded(part.parameter):
                if part.master is not None:
                    part.master.copy_(_read_local_part(reader, part, "weight", StateTensor()))
            else:
                placement = part.placement
                weight = reader.read(f"weight/{placement.name}", placement.offset, tuple(part.parameter.shape))
                part.parameter.copy_(weight)
                if part.master is not None:
                    part.master.copy_(weight if part.span is None else weight.reshape(-1)[slice(*part.span)])
            if step > 0:  # an imported model, at step 0, has only weights
                for kind, tensor in state_tensors(optimizer.settings, part).items():
                    if kind == EMA and f"{EMA}/{part.placement.name}" not in names:
                        continue  # of a run that had no mean: it starts with the next update
                    if tensor.like != "weight" or part.master is not None:
                        optimizer.set_state(part, kind, _read_local_part(reader, part, kind, tensor))
    if isinstance(optimizer.megatron, ShardedOptimizer):
        optimizer.megatron.reload_model_params()
    if step > 0:
        set_steps(optimizer.rule, optimizer.parts, step, optimizer.settings)


def _state_slices(optimizer: Optimizer, part: TensorPart, ranks: Ranks) -> Iterator[TensorPiece]:
    """Yield the slice of a weight, and of its optimizer state with one value per element."""
    placement = part.placement
    if not part.is_first_copy(ranks) or (part.master is None and part.span is not None):
        return  # another rank writes it
    values = {"weight": part.parameter if part.master is None else part.master}
    for kind, tensor in state_tensors(optimizer.settings, part).items():
        if tensor.like == "weight":
            values[kind] = _state_value(optimizer, part, kind, tensor, tuple(values["weight"].shape))
    for kind, value in values.items():
        data = value.detach().float()
        yield TensorPiece(
            name=f"{kind}/{placement.name}",
            shape=placement.shape,
            offset=placement.offset,
            block=tuple(part.parameter.shape),
            data=data.reshape(-1) if part.span else data,
            span=part.span,
        )


def _state_value(
    optimizer: Optimizer, part: TensorPart, kind: str, tensor: StateTensor, shape: tuple[int, ...]
) -> Tensor:
    """Return an optimizer state tensor, or its initial value before the first step."""
    value: Tensor | None = optimizer.rule.state.get(part.key, {}).get(kind)
    if value is not None:
        return value
    return part.key if tensor.start is None else torch.full(shape, tensor.start, device=part.key.device)


def _writes_factor(part: TensorPart, tensor: StateTensor, ranks: Ranks) -> bool:
    """Whether this rank writes row or column statistics of the optimizer. Replicas have copies, and so have tensor
    ranks, unless they divide this axis."""
    divided = part.placement.axis == (0 if tensor.like == "rows" else 1)
    return ranks.replica == 0 and (divided or ranks.tensor == 0)


def _factor_shape_and_box(part: TensorPart, tensor: StateTensor) -> tuple[tuple[int, ...], Box]:
    """Return the shape of the full row or column statistics of a weight, and the box of them that this rank holds."""
    if tensor.like == "rows":
        return (part.placement.shape[0],), Box((part.placement.offset[0],), (part.length,))
    offset = part.placement.offset[1] if part.placement.axis == 1 else 0
    return (part.matrices, part.full_width), Box((0, offset), (part.matrices, part.width))


def _read_local_part(reader: TensorReader, part: TensorPart, kind: str, tensor: StateTensor) -> Tensor:
    """Read the elements of a checkpoint tensor that this rank holds: with many data ranks a small part of the slice."""
    name, shape = f"{kind}/{part.placement.name}", tuple(part.parameter.shape)
    if tensor.like != "weight":
        _, box = _factor_shape_and_box(part, tensor)
        return reader.read(name, box.offset, box.shape)
    if part.span is None:
        return reader.read(name, part.placement.offset, shape)
    boxes = [box.shifted(part.placement.offset) for box in span_boxes(shape, *part.span)]
    parts = [reader.read(name, box.offset, box.shape).reshape(-1) for box in boxes]
    return torch.cat(parts) if len(parts) != 1 else parts[0]
