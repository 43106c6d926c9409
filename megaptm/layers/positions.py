"""Position bricks that act on attention scores."""

# Q query positions, K key positions, H heads

from __future__ import annotations

import math

import torch
from torch import Tensor

from megaptm.layers.split import HeadTable
from megaptm.spec import BIAS_BUCKETS

# arXiv:1910.10683, section 2.1: all distances from here on share the last bucket.
FARTHEST = 128


def bias_buckets(queries: int, keys: int, *, bidirectional: bool, device: torch.device | None = None) -> Tensor:
    """The bucket of each distance, [Q, K]: one each for near keys, logarithmic bins for far ones.

    Two directions share the buckets half and half; in a causal stack all of them look back.
    """
    distance = torch.arange(keys, device=device)[None, :] - torch.arange(queries, device=device)[:, None]
    side = BIAS_BUCKETS // 2 if bidirectional else BIAS_BUCKETS
    steps = distance.abs() if bidirectional else (-distance).clamp(min=0)
    exact = side // 2
    # In float32, as Mesh TensorFlow and its ports compute it: the borders of the bins depend on the rounding.
    ratio = torch.log(steps.clamp(min=1).float() / exact) / math.log(FARTHEST / exact)
    far = (exact + (ratio * (side - exact)).long()).clamp(max=side - 1)
    bucket = torch.where(steps < exact, steps, far)
    return bucket + (distance > 0) * side if bidirectional else bucket


def score_bias(table: HeadTable, queries: int, keys: int, *, bidirectional: bool) -> Tensor:
    """The learned bias on the scores, [1, H, Q, K]; H are the heads that the table holds here."""
    buckets_QK = bias_buckets(queries, keys, bidirectional=bidirectional, device=table.weight.device)
    return table(buckets_QK).permute(2, 0, 1)[None]
