"""Norm layers: LayerNorm and RMSNorm over the width."""

# D width

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megaptm.layers.costs import HeadNormShape
from megaptm.layers.split import Dropout, UsesTensorRanks, identity
from megaptm.spec import NormSpec


class Norm(nn.Module):
    """Norm layer, [..., D] -> [..., D], of a kind of `NormSpec.kind`."""

    def __init__(self, width: int, record: NormSpec) -> None:
        super().__init__()
        self.kind, self.eps = record.kind, record.eps
        self.width = width
        self.weight = nn.Parameter(torch.empty(width)) if self.kind != "layer-fixed" else None
        self.bias = nn.Parameter(torch.empty(width)) if self.kind == "layer" else None

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "rms":
            return F.rms_norm(x, (self.width,), self.weight, self.eps)
        if self.kind == "rms-unit-offset" and self.weight is not None:
            return F.rms_norm(x, (self.width,), 1 + self.weight, self.eps)
        return F.layer_norm(x, (self.width,), self.weight, self.bias, self.eps)


class FinalNorm(Norm):
    """Final norm of a pre-norm stack, followed by dropout (T5)."""

    def __init__(self, width: int, record: NormSpec, *, dropout: float) -> None:
        super().__init__(width, record)
        self.dropout = Dropout(dropout, masks="residual")

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(super().forward(x))


class HeadNorm(UsesTensorRanks, nn.Module):
    """RMSNorm of queries or keys, [S, B, H, K] -> [S, B, H, K]: of each head, or over all heads.

    The output has the input's order in memory: sequences may come first (`attention.apply_linear`).
    """

    copy_to_tensor_ranks: Callable[[Tensor], Tensor] = staticmethod(identity)
    """Hook for a weight that every tensor rank has and uses with its own heads."""

    def __init__(self, shape: HeadNormShape, record: NormSpec, *, key_width: int) -> None:
        super().__init__()
        self.split, self.key_width, self.eps = shape.split, key_width, record.eps
        self.offset = 1 if record.kind == "rms-unit-offset" else 0
        self.features = shape.features
        """Number of features over which the mean is taken, on all tensor ranks."""
        self.weight = nn.Parameter(torch.empty(shape.features))

    def forward(self, x_SBHK: Tensor) -> Tensor:
        if x_SBHK.stride(0) < x_SBHK.stride(1):
            return self._normalize(x_SBHK.transpose(0, 1)).transpose(0, 1)
        return self._normalize(x_SBHK)

    def _normalize(self, x: Tensor) -> Tensor:
        weight = self.copy_to_tensor_ranks(self.weight) if self.split == "shared" else self.weight
        weight = weight + self.offset if self.offset else weight
        if self.features == self.key_width:
            return F.rms_norm(x, (self.key_width,), weight, self.eps)
        if len(weight) == self.features:
            return F.rms_norm(x.flatten(2), (self.features,), weight, self.eps).unflatten(2, (-1, self.key_width))
        in_float = x.float()
        mean = self.ranks.sum_and_gradient(in_float.square().sum((2, 3), keepdim=True)) / self.features
        return (in_float * torch.rsqrt(mean + self.eps) * weight.view(-1, self.key_width)).to(x.dtype)
