"""Feed-forward bricks: up, a nonlinearity (possibly gated), down."""

# S sequence, B batch, D width, F feed-forward features

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from megaptm.layers.split import Dropout, Linear

gelu_tanh = partial(F.gelu, approximate="tanh")

PLAIN: dict[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "gelu-tanh": gelu_tanh, "relu": F.relu}
GATES: dict[str, Callable[[Tensor], Tensor]] = {"geglu": gelu_tanh, "swiglu": F.silu}


class FeedForward(nn.Module):
    """[S, B, D] -> [S, B, D].

    A gated kind has the rows of `up` ordered (feature, [gate, value]), so that a slice of them has matching pairs.
    """

    def __init__(self, width: int, features: int, *, kind: str, bias: bool, dropout: float) -> None:
        super().__init__()
        self.gated = kind in GATES
        self.activation = GATES[kind] if self.gated else PLAIN[kind]
        self.up = Linear(width, features * (2 if self.gated else 1), bias=bias, split="columns")
        # Ranks hold different features here, as they hold different heads in attention: they draw differently.
        self.dropout = Dropout(dropout, region="heads")
        self.down = Linear(features, width, bias=bias, split="rows")

    def forward(self, x_SBD: Tensor) -> Tensor:
        x_SBF = self.up(x_SBD)
        if self.gated:
            gate, value = x_SBF.unflatten(-1, (-1, 2)).unbind(-1)
            x_SBF = self.activation(gate) * value
        else:
            x_SBF = self.activation(x_SBF)
        return self.down(self.dropout(x_SBF))
