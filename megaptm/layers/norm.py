"""Norm layers: LayerNorm and RMSNorm over the width."""

# D width

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megaptm.layers.split import Dropout
from megaptm.spec import NormSpec


class Norm(nn.Module):
    """Norm layer, [..., D] -> [..., D]: `layer` (LayerNorm), `layer-no-shift` (no bias), `layer-fixed` (no weight, no
    bias) or `rms` (RMSNorm)."""

    def __init__(self, width: int, record: NormSpec) -> None:
        super().__init__()
        self.kind, self.eps = record.kind, record.eps
        self.width = width
        self.weight = nn.Parameter(torch.empty(width)) if self.kind != "layer-fixed" else None
        self.bias = nn.Parameter(torch.empty(width)) if self.kind == "layer" else None

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "rms":
            return F.rms_norm(x, (self.width,), self.weight, self.eps)
        return F.layer_norm(x, (self.width,), self.weight, self.bias, self.eps)


class FinalNorm(Norm):
    """Final norm of a pre-norm stack, followed by dropout (T5)."""

    def __init__(self, width: int, record: NormSpec, *, dropout: float) -> None:
        super().__init__(width, record)
        self.dropout = Dropout(dropout, masks="residual")

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(super().forward(x))
