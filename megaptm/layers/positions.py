"""Positions that are no learned table at the input: sines added there, or what acts on scores, queries and keys."""

# D width, Q query positions, K key positions, L distances, H heads; S sequence, B batch, F features of a head

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from megaptm.layers.accumulate import sum_dtype
from megaptm.layers.split import HeadTable
from megaptm.spec import BIAS_BUCKETS, BIAS_FARTHEST

ROUNDING = 1e-9
"""More than logarithms in float64 are off by, and less than any of them is from a border that it is not on: where bins
of distances begin must not depend on how a device rounds."""


def sinusoid(places_SB: Tensor, *, width: int) -> Tensor:
    """[S, B, D], float64: features 2i, 2i + 1 are sine and cosine of place / 10000^(2i/D) (arXiv:1706.03762, 3.5)."""
    exponents = torch.arange(0, width, 2, device=places_SB.device, dtype=torch.float64) / width
    angles = places_SB[..., None] * 10_000.0**-exponents
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)


def bias_buckets(queries: int, keys: int, *, bidirectional: bool, device: torch.device | None = None) -> Tensor:
    """The bucket of each distance, [Q, K]: one each for near keys, logarithmic bins for far ones.

    Two directions share the buckets half and half; in a causal stack all of them look back.
    """
    distance = torch.arange(keys, device=device)[None, :] - torch.arange(queries, device=device)[:, None]
    side = BIAS_BUCKETS // 2 if bidirectional else BIAS_BUCKETS
    steps = distance.abs() if bidirectional else (-distance).clamp(min=0)
    exact = side // 2
    ratio = torch.log(steps.clamp(min=1).double() / exact) / math.log(BIAS_FARTHEST / exact)
    far = (exact + (ratio * (side - exact) + ROUNDING).long()).clamp(max=side - 1)
    bucket = torch.where(steps < exact, steps, far)
    return bucket + (distance > 0) * side if bidirectional else bucket


def score_bias(table: HeadTable, queries: int, keys: int, *, bidirectional: bool) -> Tensor:
    """The learned bias on the scores, [1, H, Q, K]; H are the heads that the table holds here."""
    # All distances there are: the last query's, from the first key on, and then the first query's.
    backward, forward = (
        bias_buckets(*shape, bidirectional=bidirectional, device=table.weight.device).flatten()
        for shape in ((queries, 1), (1, keys))
    )
    by_distance_LH: Tensor = table(torch.cat([backward.flip(0)[:-1], forward]))
    biases: Tensor = _ByDistance.apply(by_distance_LH.t(), queries, keys)
    return biases[None]


class _ByDistance(torch.autograd.Function):
    """[H, L] -> [H, Q, K]: L = Q + K - 1 distances from the last query to the first key up. The gradient of a distance
    is summed along its diagonal in passes over memory; a lookup would add up Q x K rows one by one."""

    @staticmethod
    def forward(ctx: Any, by_distance_HL: Tensor, queries: int, keys: int) -> Tensor:
        return by_distance_HL.contiguous().unfold(1, keys, 1).flip(1)

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor, None, None]:
        d_HQK = d_outputs[0]
        heads, queries, keys = d_HQK.shape
        distances = queries + keys - 1
        # Rows that are stored one place shorter than they are read begin one earlier each time.
        stored = d_HQK.new_zeros(heads, queries, distances)
        stored.as_strided(d_HQK.shape, (queries * distances, distances - 1, 1), queries - 1).copy_(d_HQK)
        return stored.sum(1, dtype=sum_dtype(d_HQK.dtype)), None, None


def rotation(places_BS: Tensor, *, features: int, base: float) -> Tensor:
    """Cosine and sine of the angle by which `rotate` turns each pair of features at each place, [2, S, B, 1, F/2].

    Pair i turns by place / base^(2i/F) (arXiv:2104.09864, equation 15). Float32, whatever the model's format: in
    bfloat16, places from 257 on would share their angles.
    """
    exponents = torch.arange(0, features, 2, device=places_BS.device, dtype=torch.float32) / features
    angles_SBF = places_BS.t()[:, :, None].float() * base**-exponents
    return torch.stack([angles_SBF.cos(), angles_SBF.sin()])[:, :, :, None]


def rotate(x_SBHF: Tensor, turned: Tensor) -> Tensor:
    """Queries or keys, turned as `rotation` says. Feature i is paired with i + F/2, as in GPT-NeoX and Llama."""
    rotated: Tensor = _Rotate.apply(x_SBHF, turned)
    return rotated


class _Rotate(torch.autograd.Function):
    """In few passes over memory: operations read the model's format and compute in that of the angles, float32, and the
    gradient is turned back, with nothing of the forward pass but the angles."""

    @staticmethod
    def forward(ctx: Any, x_SBHF: Tensor, turned: Tensor) -> Tensor:
        ctx.save_for_backward(turned)
        cos, sin = turned
        return _turn(x_SBHF, cos, sin, sign=1)

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor, None]:
        cos, sin = ctx.saved_tensors[0]
        return _turn(d_outputs[0], cos, sin, sign=-1), None


def _turn(x_SBHF: Tensor, cos: Tensor, sin: Tensor, *, sign: int) -> Tensor:
    turned = torch.empty_like(x_SBHF)
    (first, second), (low, high) = x_SBHF.chunk(2, dim=-1), turned.chunk(2, dim=-1)
    torch.addcmul(first * cos, second, sin, value=-sign, out=low)
    torch.addcmul(second * cos, first, sin, value=sign, out=high)
    return turned
