"""Position encodings that are computed: sinusoids, biases on attention scores and rotary embeddings."""

# D width, Q query positions, K key positions, L distances, H heads; S sequence, B batch, F features of a head

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from megaptm.layers.accumulate import sum_dtype
from megaptm.layers.split import HeadTable
from megaptm.spec import BIAS_BUCKETS, BIAS_FARTHEST, ROPE_TURNS, RopeParameters

ROUNDING = 1e-9
"""Tolerance of the borders between buckets of position biases, which must not depend on the device's rounding. It is
larger than the rounding error of float64 logarithms, and smaller than the distance of any of them to a border."""


def sinusoid(positions_SB: Tensor, *, width: int) -> Tensor:
    """Return sinusoid position encodings [S, B, D], float64: features 2i and 2i + 1 are sine and cosine of position /
    10000^(2i/D) (arXiv:1706.03762, 3.5)."""
    exponents = torch.arange(0, width, 2, device=positions_SB.device, dtype=torch.float64) / width
    angles = positions_SB[..., None] * 10_000.0**-exponents
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)


def bias_buckets(distance: Tensor, *, bidirectional: bool) -> Tensor:
    """Return the bucket of the position bias for each distance of a key from a query: one bucket per small distance,
    logarithmic bins for large ones.

    Bidirectional stacks use half of the buckets for each direction; causal stacks use all for the past.
    """
    side = BIAS_BUCKETS // 2 if bidirectional else BIAS_BUCKETS
    steps = distance.abs() if bidirectional else (-distance).clamp(min=0)
    exact = side // 2
    ratio = torch.log(steps.clamp(min=1).double() / exact) / math.log(BIAS_FARTHEST / exact)
    far = (exact + (ratio * (side - exact) + ROUNDING).long()).clamp(max=side - 1)
    bucket = torch.where(steps < exact, steps, far)
    return bucket + (distance > 0) * side if bidirectional else bucket


def score_bias(table: HeadTable, queries: range, keys: int, *, bidirectional: bool) -> Tensor:
    """Return the learned position bias of the attention scores of consecutive queries with all keys, [1, H, Q, K], for
    the H heads of the table on this tensor rank."""
    distances = torch.arange(1 - queries.stop, keys - queries.start, device=table.weight.device)
    by_distance_LH: Tensor = table(bias_buckets(distances, bidirectional=bidirectional))
    biases: Tensor = _ByDistance.apply(by_distance_LH.t(), len(queries), keys)
    return biases[None]


class _ByDistance(torch.autograd.Function):
    """Expand position biases by distance, [H, L] -> [H, Q, K], with L = Q + K - 1 distances in ascending key position.

    The gradient of a distance is the sum of a diagonal, computed in a few passes over memory. A lookup would add Q x K
    rows one by one.
    """

    @staticmethod
    def forward(ctx: Any, by_distance_HL: Tensor, queries: int, keys: int) -> Tensor:
        return by_distance_HL.contiguous().unfold(1, keys, 1).flip(1)

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor, None, None]:
        d_HQK = d_outputs[0]
        heads, queries, keys = d_HQK.shape
        d_HQL = d_HQK.new_zeros(heads, queries, queries + keys - 1)
        _shift_rows(d_HQL, keys).copy_(d_HQK)
        return d_HQL.sum(1, dtype=sum_dtype(d_HQK.dtype)), None, None


def mask_scores(scores_BHQK: Tensor, attended: Tensor) -> Tensor:
    """Return scores that attention adds as a bias, -inf where a query does not attend to a key.

    Attention has no gradient for these, so it is not masked again.
    """
    masked: Tensor = _MaskScores.apply(scores_BHQK, attended)
    return masked


class _MaskScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores_BHQK: Tensor, attended: Tensor) -> Tensor:
        return scores_BHQK.masked_fill(~attended, -math.inf)

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor, None]:
        return d_outputs[0], None


def bias_of_layer(bias_1HQK: Tensor, masked_BHQK: Tensor) -> Tensor:
    """Return a masked position bias for one of the layers that share it, with the bias as its source of gradients.

    The gradient of each layer is summed over the batch before gradients of layers are added. The gradient of the masked
    bias would be added at the size of the batch.
    """
    masked: Tensor = _BiasOfLayer.apply(bias_1HQK, masked_BHQK.detach())
    return masked


class _BiasOfLayer(torch.autograd.Function):
    """Masked position bias whose gradient is that of the bias: attention has none for a masked score."""

    @staticmethod
    def forward(ctx: Any, bias_1HQK: Tensor, masked_BHQK: Tensor) -> Tensor:
        return masked_BHQK.view_as(masked_BHQK)

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor, None]:
        return d_outputs[0].sum(0, keepdim=True), None


def _shift_rows(by_distance_QL: Tensor, keys: int) -> Tensor:
    """Return a view [..., Q, K] of a tensor [..., Q, L]: row q starts at element Q - 1 - q.

    A row stride that is one element too short shifts each row by one element.
    """
    queries = by_distance_QL.shape[-2]
    *outer, row, element = by_distance_QL.stride()
    start = by_distance_QL.storage_offset() + (queries - 1) * element
    return by_distance_QL.as_strided((*by_distance_QL.shape[:-1], keys), (*outer, row - element, element), start)


def align_distances(number: int) -> int:
    """Return the number of distances to compute where this number is needed: a multiple of 8, with which rows of scores
    in 16 bits start at multiples of 16 bytes. Tensor cores are slower otherwise."""
    return -(-number // 8) * 8


def scores_by_key(by_distance_BHQL: Tensor, keys: int) -> Tensor:
    """Return the scores of queries and keys, [B, H, Q, K], from the scores of queries and distances, [B, H, Q, L], in
    ascending key position. The keys of the last query start at the first distance.

    It is a view, and the gradient is a copy: an index for each pair of query and key would be gathered, and its
    gradient added element by element. Elements after the last distance are undefined; their gradient must be 0.
    """
    if not torch.compiler.is_compiling():
        by_key: Tensor = _ByKey.apply(by_distance_BHQL, keys)
        return by_key
    # The compiler may store rows with another stride, so this names no strides. It becomes arithmetic of indices.
    queries, distances = by_distance_BHQL.shape[2:]
    shifted = by_distance_BHQL.flatten(2)[:, :, queries - 1 :][:, :, : queries * (distances - 1)]
    return shifted.unflatten(2, (queries, distances - 1))[..., :keys]


class _ByKey(torch.autograd.Function):
    """View of scores by distance as scores by key. The gradient has the strides of the scores, which are those of a
    product with all sequences."""

    @staticmethod
    def forward(ctx: Any, by_distance_BHQL: Tensor, keys: int) -> Tensor:
        ctx.shape, ctx.strides = by_distance_BHQL.shape, by_distance_BHQL.stride()
        return _shift_rows(by_distance_BHQL, keys)

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor, None]:
        d_BHQK = d_outputs[0]
        d_BHQL = d_BHQK.new_empty_strided(ctx.shape, ctx.strides).zero_()
        _shift_rows(d_BHQL, d_BHQK.shape[3]).copy_(d_BHQK)
        return d_BHQL, None


def rotary_embedding(positions_BS: Tensor, *, features: int, rope: RopeParameters) -> Tensor:
    """Return cosine and sine of the angles of rotary position embeddings, [2, S, B, 1, F/2].

    Pair i rotates by position / base^(2i/F) (arXiv:2104.09864, equation 15). Float32 regardless of the model's dtype:
    in bfloat16 positions above 256 would share angles.
    """
    exponents = torch.arange(0, features, 2, device=positions_BS.device, dtype=torch.float32) / features
    angles_SBF = positions_BS.t()[:, :, None].float() * _stretch_frequencies(rope.base**-exponents, rope)
    return torch.stack([angles_SBF.cos(), angles_SBF.sin()])[:, :, :, None]


def _stretch_frequencies(frequencies_F: Tensor, rope: RopeParameters) -> Tensor:
    """Return the frequencies of a rotary position embedding, in radians per position, divided by its factor."""
    if rope.factor == 1.0 or rope.original_context is None:
        return frequencies_F / rope.factor
    low, high = ROPE_TURNS
    turns_F = rope.original_context * frequencies_F / (2 * math.pi)
    share_F = ((turns_F - low) / (high - low)).clamp(0.0, 1.0)
    return torch.lerp(frequencies_F / rope.factor, frequencies_F, share_F)


def apply_rotary_embedding(x_SBHF: Tensor, turned: Tensor) -> Tensor:
    """Rotate queries or keys by the angles of `rotary_embedding`. Feature i is paired with i + F/2, as in GPT-NeoX and
    Llama."""
    rotated: Tensor = _Rotate.apply(x_SBHF, turned)
    return rotated


class _Rotate(torch.autograd.Function):
    """Autograd function of rotary position embedding, in few passes over memory: inputs in the model's dtype,
    arithmetic in float32. Saves only the angles."""

    @staticmethod
    def forward(ctx: Any, x_SBHF: Tensor, turned: Tensor) -> Tensor:
        ctx.save_for_backward(turned)
        cos, sin = turned
        return _rotate_pairs(x_SBHF, cos, sin, sign=1)

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor, None]:
        cos, sin = ctx.saved_tensors[0]
        return _rotate_pairs(d_outputs[0], cos, sin, sign=-1), None


def _rotate_pairs(x_SBHF: Tensor, cos: Tensor, sin: Tensor, *, sign: int) -> Tensor:
    first, second = x_SBHF.chunk(2, dim=-1)
    if torch.compiler.is_compiling():  # it fuses this, and cannot write into parts of a tensor
        halves = first * cos - sign * second * sin, second * cos + sign * first * sin
        return torch.cat(halves, dim=-1).to(x_SBHF.dtype)
    turned = torch.empty_like(x_SBHF)
    low, high = turned.chunk(2, dim=-1)
    torch.addcmul(first * cos, second, sin, value=-sign, out=low)
    torch.addcmul(second * cos, first, sin, value=sign, out=high)
    return turned
