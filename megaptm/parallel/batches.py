"""Broadcast of micro-batches: tensor rank 0 reads them and sends them to its peers."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from megaptm.parallel.groups import rank_device

ALIGNMENT = 8
"""Alignment in bytes of each field of a broadcast micro-batch, so that a tensor of any dtype can start there."""


def share_batches(microbatches: list[dict[str, Tensor]] | None, group: dist.ProcessGroup) -> list[dict[str, Tensor]]:
    """Broadcast the micro-batches of a training step within a tensor-parallel group: one message with shapes, one with
    bytes."""
    if group.size() == 1:
        assert microbatches is not None
        return microbatches
    source = dist.get_global_rank(group, 0)
    is_source = dist.get_rank() == source
    layout = [
        [{name: (field.dtype, tuple(field.shape)) for name, field in batch.items()} for batch in microbatches or []]
    ]
    dist.broadcast_object_list(layout, src=source, group=group)
    sizes = [_padded_bytes(dtype, shape) for batch in layout[0] for dtype, shape in batch.values()]
    if is_source:
        assert microbatches is not None
        # The GPU copies pinned memory asynchronously while the host launches further work.
        flat = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=rank_device().type == "cuda")
        fields = [field for batch in microbatches for field in batch.values()]
        for piece, field in zip(flat.split(sizes), fields, strict=True):
            piece[: field.nbytes].view(field.dtype).copy_(field.reshape(-1))
        flat = flat.to(rank_device(), non_blocking=True)
    else:
        flat = torch.empty(sum(sizes), dtype=torch.uint8, device=rank_device())
    dist.broadcast(flat, src=source, group=group)
    pieces = iter(flat.split(sizes))
    return [{name: _view_as(next(pieces), *kind) for name, kind in batch.items()} for batch in layout[0]]


def _num_bytes(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel() * dtype.itemsize


def _padded_bytes(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    return -(-_num_bytes(dtype, shape) // ALIGNMENT) * ALIGNMENT


def _view_as(piece: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return piece[: _num_bytes(dtype, shape)].view(dtype).view(shape)
