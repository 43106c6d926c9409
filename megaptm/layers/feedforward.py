"""Feed-forward: up projection, activation (possibly gated), down projection."""

# S sequence, B batch, D width, F feed-forward features

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from megaptm.layers.feedforward_costs import FeedForwardCosts, find_activation
from megaptm.layers.split import Dropout, Linear
from megaptm.plugins import load_plugin

gelu_tanh = partial(F.gelu, approximate="tanh")

QUICK = 1.702


def quick_gelu(x: Tensor) -> Tensor:
    """Activation `quick_gelu` of the feed-forward: return x sigmoid(1.702 x), the sigmoid approximation of GELU
    (arXiv:1606.08415, section 2)."""
    return F.silu(QUICK * x) / QUICK


def activation_of(name: str) -> Callable[[Tensor], Tensor]:
    """Return the activation function of a feed-forward with this name."""
    function: Callable[[Tensor], Tensor] = load_plugin(find_activation(name).function, "Block.ffn", "function")
    return function


class FeedForward(nn.Module):
    """Feed-forward sub-layer, [S, B, D] -> [S, B, D].

    For gated kinds rows of `up` are ordered (feature, [gate, value]), so that a slice holds matching pairs.
    """

    def __init__(self, costs: FeedForwardCosts, *, dropout: float) -> None:
        super().__init__()
        name = costs.block.ffn.activation
        assert isinstance(name, str)
        self.gated = costs.streams == 2
        self.activation = activation_of(name)
        self.up = Linear.from_shape(costs.linears["up"])
        # Tensor ranks hold different features, as they hold different heads: their dropout masks must differ.
        self.dropout = Dropout(dropout if costs.block.ffn.dropout else 0.0, masks="heads")
        self.down = Linear.from_shape(costs.linears["down"])

    def forward(self, x_SBD: Tensor) -> Tensor:
        x_SBF = self.up(x_SBD)
        if self.gated:
            pairs_SBF2 = x_SBF.unflatten(-1, (-1, 2))
            if x_SBF.is_cpu:  # contiguous operands are faster on CPUs than strided ones
                pairs_SBF2 = pairs_SBF2.movedim(-1, 0).contiguous().movedim(0, -1)
            gate, value = pairs_SBF2.unbind(-1)
            x_SBF = self.activation(gate) * value
        else:
            x_SBF = self.activation(x_SBF)
        return self.down(self.dropout(x_SBF))
