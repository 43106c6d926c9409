"""Gradients of large tables, added where the engine keeps them.

An engine may sum gradients of all micro-batches in float32 tensors of its own. A token table's gradient is as large as
the table (half a small model), and autograd would write it whole for the lookup, write it whole for the projection, add
the two, and add the sum to the engine's. Here each goes straight there.
"""

# N looked up rows, V rows of the table, D width

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """In which much of this is added up: float32 at least."""
    return torch.promote_types(dtype, torch.float32)


class GradientSum(Protocol):
    """What an engine hangs on a parameter as `gradient_sum`."""

    @property
    def total(self) -> Tensor:
        """Float32, of the parameter's shape: to be added to."""

    def added(self) -> Tensor | None:
        """Called once the gradient is in `total`; gives what the backward pass returns for the parameter."""


def gradient_sum_of(parameter: Tensor) -> GradientSum | None:
    """Where an engine sums this parameter's gradients; None without an engine."""
    found: GradientSum | None = getattr(parameter, "gradient_sum", None)
    return found


class Lookup(torch.autograd.Function):
    """`weight[ids]`, with the gradient's few rows added to the engine's sum where there is one."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight_VD: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.weight = weight_VD
        return F.embedding(ids, weight_VD)

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[None, Tensor | None]:
        (d_output,) = d_outputs
        (ids,) = ctx.saved_tensors
        weight_VD, kept = ctx.weight, gradient_sum_of(ctx.weight)
        if kept is None:
            # In float32: a CPU would add up in the format that it is given, and bfloat16 forgets what is small.
            return None, _summed(d_output.to(sum_dtype(d_output.dtype)), ids, len(weight_VD)).to(d_output.dtype)
        # To count the distinct rows, the host would have to wait for a GPU; and most of a short table is looked up.
        add = add_all_rows if weight_VD.is_cuda or ids.numel() > len(weight_VD) else add_distinct_rows
        add(kept.total, d_output.to(kept.total.dtype), ids)
        return None, kept.added()


def add_all_rows(total_VD: Tensor, d_output: Tensor, ids: Tensor) -> None:
    """Add to each row the gradients of the places that looked it up, zero for most."""
    total_VD += _summed(d_output, ids, len(total_VD))


def add_distinct_rows(total_VD: Tensor, d_output: Tensor, ids: Tensor) -> None:
    """The same, of no more memory than the rows that were looked up."""
    rows, place = ids.unique(return_inverse=True)
    total_VD[rows] += _summed(d_output, place, len(rows))


def _summed(d_output: Tensor, ids: Tensor, rows: int) -> Tensor:
    """[rows, D]: for each row, the sum of the gradients of the places that looked it up."""
    return torch.ops.aten.embedding_dense_backward(d_output, ids, rows, -1, False)
