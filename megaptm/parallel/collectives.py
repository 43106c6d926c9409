"""The few things all processes of a run say to each other outside a step."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from megaptm.parallel.groups import device

T = TypeVar("T")


def any_rank(flag: bool) -> bool:
    """True everywhere as soon as it is true anywhere: processes must leave a loop at the same step."""
    return any_rank_each(flag)[0]


def any_rank_each(*flags: bool) -> list[bool]:
    """The same of several at once."""
    answers = torch.tensor(flags, dtype=torch.int32, device=device())
    dist.all_reduce(answers, op=dist.ReduceOp.MAX)
    return [bool(answer) for answer in numbers(answers)]


def numbers(tensor: Tensor) -> list[Any]:
    """What a tensor holds, once the device has it.

    Where a collective is a kernel, as NCCL's are, it is here that the host waits for other ranks: who watches the run
    knows it by the name of this file.
    """
    return tensor.tolist()


def broadcast_object(value: T) -> T:
    """Rank 0's value, everywhere."""
    box: list[Any] = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def all_gather_object(value: T) -> list[T]:
    """Every rank's value, everywhere."""
    box: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(box, value)
    return box


def barrier() -> None:
    """Return once every process is here."""
    dist.barrier()
