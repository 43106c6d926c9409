"""Options of CoVe's recurrent layers (arXiv:1708.00107, 3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from megaptm.spec import Block, LayerSpec, Size


@dataclass(frozen=True, kw_only=True)
class LSTMSpec(LayerSpec):
    """LSTM of CoVe. Base class of its encoder and decoder layers."""

    reason = "is recurrent"
    reads_table = True
    directions: ClassVar[int] = 1

    first_layer: bool = False
    """Whether the record describes the first LSTM layer; set by `at`."""

    def at(self, layer: int) -> LayerSpec:
        return replace(self, first_layer=True) if layer == 0 else self

    def errors(self, block: Block, size: Size) -> Iterator[str]:
        if size.width != self.directions * size.ffn:
            yield (
                f"width is {size.width}, but the output of {self.kind} is {self.directions} x {size.ffn} wide: change "
                "one."
            )


@dataclass(frozen=True, kw_only=True)
class BidirectionalLSTMSpec(LSTMSpec):
    """Bidirectional LSTM: the encoder."""

    kind = "bidirectional-lstm"
    costs = "megaptm.families.cove.costs:BidirectionalLSTMCosts"
    stack = "megaptm.families.cove.stack:EncoderStack"
    directions = 2


@dataclass(frozen=True, kw_only=True)
class AttentiveLSTMSpec(LSTMSpec):
    """LSTM with input feeding, which also reads the attention output of the previous position: the decoder."""

    kind = "attentive-lstm"
    costs = "megaptm.families.cove.costs:AttentiveLSTMCosts"
    stack = "megaptm.families.cove.stack:DecoderStack"
    block_fields = ("visibility", "cross")

    def errors(self, block: Block, size: Size) -> Iterator[str]:
        if block.cross is None or not block.causal:
            yield (
                f"layer is {self.kind}, a decoder that attends to an encoder: set `cross` to the name of the encoder, "
                "and `visibility` to causal."
            )
        yield from super().errors(block, size)
