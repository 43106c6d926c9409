"""Fast matrix products on CPUs.

float32 on AMD processors with AVX-512: torch uses MKL, which reaches 115 GFLOP/s there on one thread; oneDNN, which
torch also has, reaches 250 (1,024 x 768 x 3,072, EPYC of family 26; benchmarks/products.py).

bfloat16 on Intel processors without AMX runs at half the rate of float32: 82 against 155 GFLOP/s (788 x 768 x 3,072).
Products of two bfloat16 numbers are exact in float32. Both ways accumulate in float32, in different orders, and round
once.
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
"""With fewer rows, copying a bfloat16 weight costs more than the product."""

LEAST_MULTIPLIED = 2**22
"""Smallest number of multiplications. With fewer, calling oneDNN costs as much as it gains, and so does the code that
it generates for each new shape (1 ms)."""


def linear(x: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Return `F.linear`, [..., I] -> [..., O]."""
    if x.dtype == weight_OI.dtype and (widens(x) or _by_onednn(x, len(weight_OI))):
        mapped: Tensor = CpuLinear.apply(x, weight_OI, bias_O)
        return mapped
    return F.linear(x, weight_OI, bias_O)


def matmul(a_NI: Tensor, b_IO: Tensor) -> Tensor:
    """Return `a @ b` [N, O] without autograd, for hand-written backward passes."""
    return _linear(a_NI, b_IO.t())


def add_matmul(total_NO: Tensor, a_NI: Tensor, b_IO: Tensor) -> Tensor:
    """Add `a @ b` to `total` in place."""
    if total_NO.dtype != a_NI.dtype or _by_onednn(a_NI, b_IO.shape[1]):
        return total_NO.add_(matmul(a_NI, b_IO))
    return total_NO.addmm_(a_NI, b_IO)


def widens(x: Tensor) -> bool:
    """Whether a linear layer is faster in float32. Depends on dtype, device and number of rows only, so that
    recomputation chooses the same."""
    of_bfloat16 = x.dtype == torch.bfloat16 and x.device.type == "cpu"
    return of_bfloat16 and x.numel() >= LEAST_ROWS * x.shape[-1] and prefers_float32()


def _by_onednn(x: Tensor, outputs: int) -> bool:
    of_float32 = x.dtype == torch.float32 and x.device.type == "cpu"
    return of_float32 and x.numel() * outputs >= LEAST_MULTIPLIED and prefers_onednn()


def prefers_float32() -> bool:
    """Whether bfloat16 is slower than float32 on this processor. On AMD bfloat16 is faster."""
    return is_intel() and not has_instructions("amx_bf16")


def prefers_onednn() -> bool:
    """Whether oneDNN is faster than MKL, which uses 256-bit vectors unless Intel made the processor."""
    return is_amd() and has_instructions("avx512f") and torch.backends.mkldnn.is_available()


def _linear(x: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Return `F.linear` by the faster library. `weight` may be a transposed view."""
    if not _by_onednn(x, len(weight_OI)):
        return F.linear(x, weight_OI, bias_O)
    # oneDNN ignores the strides of a bias.
    bias_O = None if bias_O is None else bias_O.contiguous()
    # `F.linear` uses oneDNN for float32 only with reduced precision.
    mapped: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight_OI, bias_O, "none", [], "")
    return mapped


class CpuLinear(torch.autograd.Function):
    """`F.linear`, [..., I] -> [..., O]; bfloat16 by float32 products if it `widens`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight_OI)
        return _linear(x.float(), weight_OI.float(), None if bias_O is None else bias_O.float()).to(x.dtype)

    @staticmethod
    @once_differentiable  # oneDNN's product has no second derivative; it would silently be zero
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
        """Count operations for torch's FLOP counter, which knows `F.linear` only."""
        return 2 * x.numel() * weight_OI[0]
