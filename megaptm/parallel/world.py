"""The few things all processes of a run say to each other outside a step."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
import torch.distributed as dist

from megaptm.parallel.groups import device

T = TypeVar("T")


def agree(flag: bool) -> bool:
    """True everywhere as soon as it is true anywhere: processes must leave a loop at the same step."""
    answer = torch.tensor(int(flag), device=device())
    dist.all_reduce(answer, op=dist.ReduceOp.MAX)
    return bool(answer.item())


def from_rank_0(value: T) -> T:
    """Rank 0's value, everywhere."""
    box: list[Any] = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def wait_for_all() -> None:
    """Return once every process is here."""
    dist.barrier()
