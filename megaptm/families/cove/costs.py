"""Linear layers and costs of CoVe's recurrent layers."""

from __future__ import annotations

from typing import cast

from megaptm.families.cove.spec import LSTMSpec
from megaptm.layers.costs import LayerCosts, LinearShape, MemoryTraffic, SavedBytes
from megaptm.spec import Block, Size


class LSTMCosts(LayerCosts):
    """Base of the costs of CoVe's LSTMs. Rows of both linear layers: (input gate, forget gate, new value, output gate)
    by features."""

    kernels = 10
    directions = 1
    reads: int
    """Number of input features of CoVe's LSTM at each position."""

    def lstm_linears(self, prefix: str = "") -> dict[str, LinearShape]:
        gates = 4 * self.size.ffn
        return {
            f"{prefix}input": LinearShape(self.reads, gates, True),
            f"{prefix}state": LinearShape(self.size.ffn, gates, True, sequential=True),
        }

    def saved_bytes(self, element: int, *, dropout: bool) -> SavedBytes:
        """Return the bytes that CoVe's LSTM saves: four gates and their inputs, the cell and its tanh, and the
        output."""
        return SavedBytes(own=self.directions * 11 * self.size.ffn * element)

    def memory_traffic(self, element: int) -> MemoryTraffic:
        passed = self.directions * (3 * 2 * 4 + 8) * self.size.ffn * element
        return MemoryTraffic(forward=passed, backward=2 * passed)


class BidirectionalLSTMCosts(LSTMCosts):
    """Bidirectional LSTM (CoVe's encoder, arXiv:1708.00107, 3)."""

    directions = 2

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        super().__init__(block, size, memory)
        self.reads = size.table_width if cast(LSTMSpec, block.layer).first_layer else size.width
        self.linears = {**self.lstm_linears("ahead."), **self.lstm_linears("back.")}


class AttentiveLSTMCosts(LSTMCosts):
    """Layer of CoVe's decoder. The first has the attention of the decoder: a projection of its state, whose products
    with the encoder's output are the attention scores, and a projection of both."""

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        super().__init__(block, size, memory)
        if not cast(LSTMSpec, block.layer).first_layer:
            self.reads = size.width
            self.linears = self.lstm_linears()
            return
        self.kernels = 18
        self.reads = size.table_width + size.width
        self.linears = {
            **self.lstm_linears("lstm."),
            "attention.query": LinearShape(size.width, memory, True, sequential=True),
            "attention.merge": LinearShape(memory + size.width, size.width, True, sequential=True),
        }
