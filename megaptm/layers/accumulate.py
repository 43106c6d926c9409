"""Gradients of large tables, added directly to the engine's gradient buffer.

The engine may accumulate gradients of all micro-batches in float32 buffers. The gradient of a token table is as large
as the table, half of a small model. Autograd would write it once for the lookup and once for the projection, add both,
and add the sum to the buffer. These functions add each part to the buffer directly.
"""

# N looked up rows, V rows of the table, D width

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for sums of many gradients: at least float32."""
    return torch.promote_types(dtype, torch.float32)


class GradientSum(Protocol):
    """Interface of the attribute `gradient_sum` that an engine adds to a parameter."""

    @property
    def total(self) -> Tensor:
        """Return the float32 gradient buffer of the parameter's shape."""

    def added(self) -> Tensor | None:
        """Notify that the gradient is in `total`. Return the value that the backward pass returns for the parameter."""


def gradient_sum_of(parameter: Tensor) -> GradientSum | None:
    """Return the engine's gradient buffer of a parameter. None without an engine."""
    gradient_sum: GradientSum | None = getattr(parameter, "gradient_sum", None)
    return gradient_sum


class EmbeddingLookup(torch.autograd.Function):
    """Embedding lookup, `weight[ids]`, whose backward pass adds rows to the engine's buffer, if there is one."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight_VD: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.weight = weight_VD
        return F.embedding(ids, weight_VD)

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[None, Tensor | None]:
        (d_output,) = d_outputs
        (ids,) = ctx.saved_tensors
        weight_VD, retained = ctx.weight, gradient_sum_of(ctx.weight)
        if retained is None:
            # In float32: CPU kernels accumulate in the input dtype, and bfloat16 would lose small values.
            return None, _summed(d_output.to(sum_dtype(d_output.dtype)), ids, len(weight_VD)).to(d_output.dtype)
        # Most rows receive zero. Counting distinct rows would synchronize with a GPU.
        total_VD = retained.total
        total_VD += _summed(d_output.to(total_VD.dtype), ids, len(total_VD))
        return None, retained.added()


def _summed(d_output: Tensor, ids: Tensor, rows: int) -> Tensor:
    """Return the sum of gradients for each row of a table, [rows, D]."""
    return torch.ops.aten.embedding_dense_backward(d_output, ids, rows, -1, False)
