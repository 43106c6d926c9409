"""Collective communication between all ranks of a run, outside of a training step."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from megaptm.parallel.groups import rank_device

T = TypeVar("T")


def any_rank(flag: bool) -> bool:
    """Return True on all ranks if `flag` is True on any rank, so that all leave a loop at the same step."""
    return any_rank_each(flag)[0]


def any_rank_each(*flags: bool) -> list[bool]:
    """Return `any_rank` of several flags, with one collective."""
    answers = torch.tensor(flags, dtype=torch.int32, device=rank_device())
    dist.all_reduce(answers, op=dist.ReduceOp.MAX)
    return [bool(answer) for answer in copy_to_host(answers)]


def copy_to_host(tensor: Tensor) -> list[Any]:
    """Copy the values of a tensor to the host, after the device has computed them.

    With NCCL, collectives are kernels, so the host waits for other ranks here. The watchdog recognizes such a wait by
    the name of this file.
    """
    return tensor.tolist()


def broadcast_object(value: T) -> T:
    """Return the object of rank 0 on all ranks."""
    box: list[Any] = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def all_gather_object(value: T) -> list[T]:
    """Return the objects of all ranks, by rank, on every rank."""
    box: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(box, value)
    return box


def send_to_previous(tensor: Tensor, rank: int, ranks: int, group: dist.ProcessGroup) -> Tensor:
    """Send a tensor to the previous rank, and return the tensor of the next rank, which has the same shape."""
    received = torch.empty_like(tensor)
    request = dist.isend(tensor, (rank - 1) % ranks, group=group)
    dist.recv(received, (rank + 1) % ranks, group=group)
    assert request is not None
    request.wait()
    return received


def barrier() -> None:
    """Wait until all ranks have called this function."""
    dist.barrier()
