"""Micro-batches read by tensor rank 0, received by its peers."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from megaptm.parallel.groups import device


def share_batches(batches: list[dict[str, Tensor]] | None, group: dist.ProcessGroup) -> list[dict[str, Tensor]]:
    """Broadcast a step's micro-batches (int64) within a tensor-parallel group: one message of shapes, one of data."""
    if group.size() == 1:
        assert batches is not None
        return batches
    source = dist.get_global_rank(group, 0)
    is_source = dist.get_rank() == source
    layout = [[{name: tuple(field.shape) for name, field in batch.items()} for batch in batches or []]]
    dist.broadcast_object_list(layout, src=source, group=group)
    size = sum(torch.Size(shape).numel() for batch in layout[0] for shape in batch.values())
    if is_source:
        assert batches is not None
        flat = torch.cat([field.reshape(-1) for batch in batches for field in batch.values()])
        flat = flat.to(device(), non_blocking=True)
    else:
        flat = torch.empty(size, dtype=torch.int64, device=device())
    dist.broadcast(flat, src=source, group=group)
    pieces = iter(flat.split([torch.Size(shape).numel() for batch in layout[0] for shape in batch.values()]))
    return [{name: next(pieces).view(shape) for name, shape in batch.items()} for batch in layout[0]]
