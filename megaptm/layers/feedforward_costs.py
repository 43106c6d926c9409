"""Linear layers and costs of feed-forward layers: up projection, activation (possibly gated), down projection. No
torch."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from megaptm.errors import UserError
from megaptm.families import Registry, contributions
from megaptm.layers.costs import LayerCosts, LinearShape, MemoryTraffic, SavedBytes
from megaptm.plugins import is_plugin
from megaptm.spec import Block, Size

ROWS_FED = 4096
"""Maximum positions of a micro-batch that pass through the feed-forward of a reversible layer at once, because its
features are large. It holds for forward and backward pass."""


class FeedForwardCosts(LayerCosts):
    """Costs of a feed-forward: up projection, activation, down projection."""

    streams = 1
    """Number of outputs of the up projection per feature of the feed-forward."""
    passes = 1.0
    """Memory traffic of the activation function, relative to that of GELU."""
    keeps = 2
    """Number of values per feature that a feed-forward saves: input and output of the activation. The output is the
    input of `down`."""

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        super().__init__(block, size, memory)
        bias = block.ffn.bias
        self.linears = {
            "up": LinearShape(size.width, self.streams * size.ffn, bias, "columns", matrices=self.streams),
            "down": LinearShape(size.ffn, size.width, bias, "rows"),
        }

    def saved_bytes(self, element: int, *, dropout: bool) -> SavedBytes:
        return SavedBytes(own=self.size.ffn * (self.keeps * element + (1 if self._has_dropout(dropout) else 0)))

    def memory_traffic(self, element: int) -> MemoryTraffic:
        features = self.size.ffn * element * self.passes
        return MemoryTraffic(forward=2 * features, backward=4 * features)

    def _has_dropout(self, dropout: bool) -> bool:
        return dropout and self.block.ffn.dropout


class ReluCosts(FeedForwardCosts):
    """Costs of a feed-forward with ReLU, which saves only the output of ReLU. With dropout, it also saves the input of
    `down`."""

    keeps = 1

    def saved_bytes(self, element: int, *, dropout: bool) -> SavedBytes:
        saved = super().saved_bytes(element, dropout=dropout).own
        return SavedBytes(own=saved + (self.size.ffn * element if self._has_dropout(dropout) else 0))


class QuickGeluCosts(FeedForwardCosts):
    """Costs of a feed-forward with QuickGELU, x sigmoid(1.702 x), computed as silu of a multiple. It saves that
    multiple and the input of `down`."""

    passes = 3.0


class GatedCosts(FeedForwardCosts):
    """Costs of a gated feed-forward. Rows of `up` are ordered (feature, [gate, value]), so that a slice has matching
    pairs."""

    streams = 2
    passes = 2.5
    keeps = 4
    """Number of values per feature that a gated feed-forward saves: gate and value, the activated gate, and their
    product."""


@dataclass(frozen=True)
class Activation:
    """Activation function of feed-forward layers, with its costs."""

    function: str
    """Elementwise function `package.module:NAME` of a tensor; if the feed-forward is gated, of the gate."""
    costs: type[FeedForwardCosts] = FeedForwardCosts
    """Class of the costs of a feed-forward with this activation."""


ACTIVATIONS: Registry[Activation] = Registry(
    {
        "gelu": Activation("torch.nn.functional:gelu"),
        "gelu-tanh": Activation("megaptm.layers.feedforward:gelu_tanh"),
        "relu": Activation("torch.nn.functional:relu", ReluCosts),
        "quick-gelu": Activation("megaptm.layers.feedforward:quick_gelu", QuickGeluCosts),
        "geglu": Activation("megaptm.layers.feedforward:gelu_tanh", GatedCosts),
        "geglu-exact": Activation("torch.nn.functional:gelu", GatedCosts),
        "swiglu": Activation("torch.nn.functional:silu", GatedCosts),
    },
    lambda: chain.from_iterable(map(dict.items, contributions("activations", "ACTIVATIONS"))),
)
"""Activation functions of feed-forward layers by name."""


def find_activation(name: str) -> Activation:
    """Return an activation of the feed-forward by name, or a custom function `package.module:NAME`, which is assumed to
    cost as much as GELU. Raise UserError with the known names if it is unknown."""
    if is_plugin(name):
        return Activation(name)
    if name not in ACTIVATIONS:
        raise UserError(f"Block.ffn.activation is {name!r}, which is unknown; use one of {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]
