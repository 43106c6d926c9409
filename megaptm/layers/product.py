"""Linear maps on CPUs, by the products that are the fastest there.

float32 on AMD's cores with AVX-512: torch multiplies by MKL, which there reaches 115 GFLOP/s on one thread; oneDNN,
which torch has as well, 250 (1,024 x 768 x 3,072, EPYC of family 26; benchmarks/products.py).

bfloat16 on Intel's cores without tiles (AMX): half the rate of float32, 82 against 155 GFLOP/s (788 x 768 x 3,072).
Products of two bfloat16 numbers are exact in float32, in which either way adds them up, in an order of its own; the sum
is rounded once.
"""

# N rows, I features in, O features out

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.flop_counter import register_flop_formula

from megaptm.processor import has_instructions, is_amd, is_intel

LEAST_ROWS = 64
"""With fewer, the copy of a bfloat16 weight costs more than the product."""

LEAST_MULTIPLIED = 2**22
"""Pairs of numbers that are multiplied. With fewer, the call of oneDNN costs as much as it gains; and so does the code
that it makes for each new shape (1 ms), of batches whose rows are never as many as before."""


def linear(x: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """`F.linear`: [..., I] -> [..., O]"""
    if x.dtype == weight_OI.dtype and (widens(x) or _by_onednn(x, len(weight_OI))):
        mapped: Tensor = CpuLinear.apply(x, weight_OI, bias_O)
        return mapped
    return F.linear(x, weight_OI, bias_O)


def matmul(a_NI: Tensor, b_IO: Tensor) -> Tensor:
    """`a @ b` [N, O], for passes that are themselves written out: nothing is recorded for autograd."""
    return _linear(a_NI, b_IO.t())


def add_matmul(total_NO: Tensor, a_NI: Tensor, b_IO: Tensor) -> Tensor:
    """total + a @ b, in place."""
    if total_NO.dtype != a_NI.dtype or _by_onednn(a_NI, b_IO.shape[1]):
        return total_NO.add_(matmul(a_NI, b_IO))
    return total_NO.addmm_(a_NI, b_IO)


def widens(x: Tensor) -> bool:
    """Whether a map of x is faster in float32; of its type, place and rows, so that a pass that is run again takes the
    same."""
    of_bfloat16 = x.dtype == torch.bfloat16 and x.device.type == "cpu"
    return of_bfloat16 and x.numel() >= LEAST_ROWS * x.shape[-1] and prefers_float32()


def _by_onednn(x: Tensor, outputs: int) -> bool:
    of_float32 = x.dtype == torch.float32 and x.device.type == "cpu"
    return of_float32 and x.numel() * outputs >= LEAST_MULTIPLIED and prefers_onednn()


def prefers_float32() -> bool:
    """Others are left alone, as AMD's, whose bfloat16 is the faster."""
    return is_intel() and not has_instructions("amx_bf16")


def prefers_onednn() -> bool:
    """MKL multiplies by vectors of 256 bits unless Intel made the processor."""
    return is_amd() and has_instructions("avx512f") and torch.backends.mkldnn.is_available()


def _linear(x: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """`F.linear` by whichever is the faster; `weight` may be a transposed view."""
    if not _by_onednn(x, len(weight_OI)):
        return F.linear(x, weight_OI, bias_O)
    # It reads a bias as if its numbers lay side by side, wherever they lie.
    bias_O = None if bias_O is None else bias_O.contiguous()
    # `F.linear` itself takes oneDNN for float32 only where less than float32 is asked of it.
    mapped: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight_OI, bias_O, "none", [], "")
    return mapped


class CpuLinear(torch.autograd.Function):
    """`F.linear` [..., I] -> [..., O], of bfloat16 by products of float32 where it `widens`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight_OI)
        return _linear(x.float(), weight_OI.float(), None if bias_O is None else bias_O.float()).to(x.dtype)

    @staticmethod
    @once_differentiable  # oneDNN's product has no gradient: of a gradient's there would be zeros, silently
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight_OI = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        d_NO = d_outputs[0].reshape(-1, len(weight_OI)).float()
        d_x = matmul(d_NO, weight_OI.float()).to(x.dtype).view(x.shape) if of_x else None
        d_weight = matmul(d_NO.t(), x.reshape(-1, x.shape[-1]).float()).to(weight_OI.dtype) if of_weight else None
        return d_x, d_weight, d_NO.sum(0).to(weight_OI.dtype) if of_bias else None


if torch.backends.mkldnn.is_available():

    @register_flop_formula(torch.ops.mkldnn._linear_pointwise)
    def _operations(x: torch.Size, weight_OI: torch.Size, *_: Any, out_shape: torch.Size, **__: Any) -> int:
        """For torch's counter of operations, which knows `F.linear` only."""
        return 2 * x.numel() * weight_OI[0]
