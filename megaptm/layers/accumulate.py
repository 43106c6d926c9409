"""Gradients of large tables, added where the engine keeps them.

The engine gives every parameter a `main_grad`, a float32 tensor that gradients of all micro-batches are summed in. A
token table's gradient is as large as the table (half a small model), and autograd would write it whole for the lookup,
write it whole for the projection, add the two, and add the sum to `main_grad`. Here each goes straight there.
"""

# N looked up rows, V rows of the table, D width

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def main_grad_of(parameter: Tensor) -> Tensor | None:
    """Where the engine sums this parameter's gradients; None without an engine."""
    gradient: Tensor | None = getattr(parameter, "main_grad", None)
    return gradient


def mark_grad_added(parameter: Tensor) -> Tensor | None:
    """What a backward pass returns for a parameter whose gradient it has already added to `main_grad`.

    Where the engine reduces gradients during the backward pass it waits to see one for every parameter: it gets one
    whose values nobody reads.
    """
    parameter.grad_added_to_main_grad = True  # type: ignore[attr-defined]
    return torch.empty_like(parameter) if getattr(parameter, "overlap_grad_reduce", False) else None


class Lookup(torch.autograd.Function):
    """`weight[ids]`, with the gradient's few rows added to `main_grad` where there is one."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight_VD: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.weight = weight_VD
        return F.embedding(ids, weight_VD)

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[None, Tensor | None]:
        (d_output,) = d_outputs
        (ids,) = ctx.saved_tensors
        weight_VD, total_VD = ctx.weight, main_grad_of(ctx.weight)
        if total_VD is None:
            return None, _summed(d_output, ids, len(weight_VD))
        # To count the distinct rows, the host would have to wait for a GPU.
        add = add_all_rows if weight_VD.is_cuda else add_distinct_rows
        add(total_VD, d_output.to(total_VD.dtype), ids)
        return None, mark_grad_added(weight_VD)


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
