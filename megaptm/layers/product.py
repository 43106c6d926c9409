"""Linear maps of bfloat16 on processors whose products of float32 are the faster ones.

Without tiles (AMX) an Intel core multiplies bfloat16 at half the rate of float32: 82 against 155 GFLOP/s, one thread,
788 x 768 x 3,072. Products of two bfloat16 numbers are exact in float32, in which either way adds them up, in an order
of its own; the sum is rounded once.
"""

# N rows, I features in, O features out

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

LEAST_ROWS = 64
"""With fewer, the copy of the weight costs more than the product."""


def widens(x: Tensor) -> bool:
    """Whether a map of x is faster in float32; of its type, place and rows, so that a pass that is run again takes the
    same."""
    of_bfloat16 = x.dtype == torch.bfloat16 and x.device.type == "cpu"
    return of_bfloat16 and x.numel() >= LEAST_ROWS * x.shape[-1] and prefers_float32()


@cache
def prefers_float32() -> bool:
    """Told by what the processor is: what was measured might differ when a run is resumed. Others are left alone, as
    AMD's, whose bfloat16 is the faster."""
    processor = Path("/proc/cpuinfo")
    found = processor.read_text() if processor.exists() else ""
    return "GenuineIntel" in found and "amx_bf16" not in found


class WideLinear(torch.autograd.Function):
    """`F.linear` of bfloat16 [..., I] -> [..., O], by products of float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight_OI)
        return F.linear(x.float(), weight_OI.float(), None if bias_O is None else bias_O.float()).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight_OI = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        d_NO = d_outputs[0].flatten(0, -2).float()
        d_x = (d_NO @ weight_OI.float()).to(x.dtype).view(x.shape) if of_x else None
        d_weight = (d_NO.t() @ x.flatten(0, -2).float()).to(weight_OI.dtype) if of_weight else None
        return d_x, d_weight, d_NO.sum(0).to(weight_OI.dtype) if of_bias else None
