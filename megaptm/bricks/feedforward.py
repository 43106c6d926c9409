"""Feed-forward: up, a nonlinearity (possibly gated), down."""

from __future__ import annotations

from megaptm.bricks.brick import Brick, Map, MemoryTraffic, SavedBytes, register
from megaptm.spec import Block, Size

ROWS_FED = 4096
"""Places of a micro-batch that pass at a time through the feed-forward of a reversible layer, in either pass: its
features are many."""


@register("ffn", "gelu", "gelu-tanh")
class FeedForwardBrick(Brick):
    """One map up, a nonlinearity, one map down."""

    streams = 1
    """Of features that `up` makes."""
    passes = 1.0
    """Through memory, against those of one nonlinearity."""
    keeps = 2
    """Values a feature: the nonlinearity's input, and its output, which is the input of `down`."""

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        super().__init__(block, size, memory)
        bias = block.ffn_bias
        self.maps = {
            "up": Map(size.width, self.streams * size.ffn, bias, "columns", matrices=self.streams),
            "down": Map(size.ffn, size.width, bias, "rows"),
        }

    def saved_bytes(self, element: int, *, dropout: bool) -> SavedBytes:
        return SavedBytes(own=self.size.ffn * (self.keeps * element + (1 if self._drops(dropout) else 0)))

    def memory_traffic(self, element: int) -> MemoryTraffic:
        features = self.size.ffn * element * self.passes
        return MemoryTraffic(forward=2 * features, backward=4 * features)

    def _drops(self, dropout: bool) -> bool:
        return dropout and self.block.ffn_dropout


@register("ffn", "relu")
class RectifiedBrick(FeedForwardBrick):
    """The rectifier keeps its output, which is the input of `down` unless dropout stands between."""

    keeps = 1

    def saved_bytes(self, element: int, *, dropout: bool) -> SavedBytes:
        saved = super().saved_bytes(element, dropout=dropout).own
        return SavedBytes(own=saved + (self.size.ffn * element if self._drops(dropout) else 0))


@register("ffn", "quick-gelu")
class QuickBrick(FeedForwardBrick):
    """x sigmoid(1.702 x), as silu of a multiple: it keeps that, and what `down` reads."""

    passes = 3.0


@register("ffn", "geglu", "swiglu")
class GatedBrick(FeedForwardBrick):
    """Rows of `up` are ordered (feature, [gate, value]), so that a slice of them has matching pairs."""

    streams = 2
    passes = 2.5
    keeps = 4
    """Gate and value, the gate's answer, their product."""
