"""Gradients of large tables, added directly to the engine's gradient buffer.

The engine may accumulate gradients of all micro-batches in float32 buffers. The gradient of a token table is as large
as the table, half of a small model. Autograd would write it once for the lookup and once for the projection, add both,
and add the sum to the buffer. These functions add each part to the buffer directly.
"""

# N looked up or multiplied rows, V rows of the table, D width, I inputs, O outputs

from __future__ import annotations

import weakref
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for sums of many gradients of this dtype: at least float32."""
    return torch.promote_types(dtype, torch.float32)


HAS_MIXED_SUM = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10)
"""Whether torch can add a matrix product to a sum in a longer format. torch 2.9 has the argument, but requires one
format."""


def adds_products_in_float32(factor: Tensor) -> bool:
    """Whether torch can add a matrix product of factors in a shorter format to a float32 sum: on GPUs."""
    return factor.is_cuda and HAS_MIXED_SUM


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add the matrix product `a @ b` to a sum of at least float32, in one kernel where possible.

    Otherwise the product is rounded to the format of its factors first.
    """
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    elif adds_products_in_float32(a):
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total += a @ b


def product_in_float32(a: Tensor, b: Tensor) -> Tensor:
    """Return the matrix product `a @ b` in at least float32. On CPUs it is rounded to the format of its factors
    first."""
    dtype = sum_dtype(a.dtype)
    if a.is_cuda and dtype != a.dtype:
        return torch.mm(a, b, out_dtype=dtype)
    return (a @ b).to(dtype)


class GradientSum(Protocol):
    """Interface of a parameter's attribute `gradient_sum`, with which an engine sums gradients itself."""

    @property
    def total(self) -> Tensor:
        """Return the float32 buffer for the gradient sum, in the parameter's shape."""

    def mark_added(self) -> Tensor | None:
        """Notify the engine that the gradient is added to `total`. Return the value that the backward pass returns for
        the parameter."""


def gradient_sum_of(parameter: Tensor) -> GradientSum | None:
    """Return the engine's gradient sum of a parameter. None without an engine."""
    gradient_sum: GradientSum | None = getattr(parameter, "gradient_sum", None)
    return gradient_sum


def linear(x: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    """Return `F.linear(x, weight, bias)`. The backward pass adds the gradient of the weight to the engine's buffer in
    one kernel, if the engine allows it (`allow_direct_sum`).
    """
    if not getattr(weight_OI, "adds_products", False) or not torch.is_grad_enabled():
        return F.linear(x, weight_OI, bias_O)
    function = _CompiledLinear if torch.compiler.is_compiling() else _Linear
    product: Tensor = function.apply(x, weight_OI, bias_O)
    return product


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight = weight_OI
        return F.linear(x, weight_OI, bias_O)

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (x,), weight_OI = ctx.saved_tensors, ctx.weight
        d_output_NO = d_outputs[0].flatten(0, -2)
        d_x = (d_output_NO @ weight_OI).view(x.shape) if ctx.needs_input_grad[0] else None
        gradient_sum = gradient_sum_of(weight_OI)
        assert gradient_sum is not None
        add_product(gradient_sum.total, d_output_NO.t(), x.flatten(0, -2))
        return d_x, gradient_sum.mark_added(), d_output_NO.sum(0) if ctx.needs_input_grad[2] else None


class _CompiledLinear(torch.autograd.Function):
    """Custom operation of `linear` for code that torch compiles, which sees the addition to the gradient sum as one
    opaque operation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight_OI)
        ctx.has_bias = bias_O is not None
        return F.linear(x, weight_OI, bias_O)

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight_OI = ctx.saved_tensors
        d_output_NO = d_outputs[0].flatten(0, -2)
        d_x = (d_output_NO @ weight_OI).view(x.shape)
        placeholder = torch.ops.megaptm.add_weight_gradient(d_output_NO, x.flatten(0, -2), weight_OI)
        return d_x, placeholder, d_output_NO.sum(0) if ctx.has_bias else None


_PARAMETERS: dict[int, weakref.ref[Tensor]] = {}
"""Parameters by memory address, for compiled code, which gets other tensor objects of the same memory."""

torch.library.define("megaptm::add_weight_gradient", "(Tensor d_output, Tensor x, Tensor weight) -> Tensor")


@torch.library.impl("megaptm::add_weight_gradient", "CompositeExplicitAutograd")
def _add_weight_gradient(d_output_NO: Tensor, x_NI: Tensor, weight_OI: Tensor) -> Tensor:
    """Add the gradient of a weight to the engine's gradient sum. Return a placeholder of the gradient."""
    parameter: Any = _PARAMETERS[weight_OI.data_ptr()]()
    parameter.has_placeholder = True
    gradient_sum: GradientSum = parameter.gradient_sum
    add_product(gradient_sum.total, d_output_NO.t(), x_NI)
    added = gradient_sum.mark_added()
    return torch.empty_like(weight_OI) if added is None else added


@torch.library.register_fake("megaptm::add_weight_gradient")
def _(d_output_NO: Tensor, x_NI: Tensor, weight_OI: Tensor) -> Tensor:
    return torch.empty_like(weight_OI)


def allow_direct_sum(weight: Tensor, *, is_exclusive: bool) -> bool:
    """Let `linear` add the gradient of a weight to its `gradient_sum`, if torch can add products to it, and if no other
    function uses the weight. Return whether it does."""
    allowed = (
        is_exclusive and weight.requires_grad and (weight.dtype == torch.float32 or adds_products_in_float32(weight))
    )
    weight.adds_products = allowed  # type: ignore[attr-defined]
    if allowed and not is_fake(weight):
        _PARAMETERS[weight.data_ptr()] = weakref.ref(weight)
    return allowed


class EmbeddingLookup(torch.autograd.Function):
    """Autograd function of the embedding lookup `weight[ids]`. Its backward pass adds rows to the engine's gradient
    sum, if there is one."""

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
            return None, _sum_by_row(d_output.to(sum_dtype(d_output.dtype)), ids, len(weight_VD)).to(d_output.dtype)
        # Most rows receive zero. Counting distinct rows would synchronize with a GPU.
        total_VD = retained.total
        total_VD += _sum_by_row(d_output.to(total_VD.dtype), ids, len(total_VD))
        return None, retained.mark_added()


def _sum_by_row(d_output: Tensor, ids: Tensor, rows: int) -> Tensor:
    """Return the gradient sum for each row of an embedding table, [rows, D]."""
    return torch.ops.aten.embedding_dense_backward(d_output, ids, rows, -1, False)
