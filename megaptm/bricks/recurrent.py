"""Bricks of recurrent layers."""

# D width, F features of a cell

from __future__ import annotations

from megaptm.bricks.brick import Brick, LinearShape, MemoryTraffic, SavedBytes, register
from megaptm.spec import Block, Size


@register("recurrent", "lstm")
class ProjectedLSTMBrick(Brick):
    """LSTM with projected output (arXiv:1402.1128), as in ELMo (arXiv:1802.05365). Its gates read the hidden states and
    the projection of the previous position. Rows of `input` and `state`: (input gate, new value, forget gate, output
    gate) by features.

    Replicated on tensor ranks: gates of a position depend on those of the previous one.
    """

    kernels = 14
    """Sum of products, four gates, their bias, two products, sum, clip, tanh, product, clip, and saved values."""

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        super().__init__(block, size, memory)
        self.maps = {
            "input": LinearShape(size.width, 4 * size.ffn, True),
            "state": LinearShape(size.width, 4 * size.ffn, False, sequential=True),
            "projection": LinearShape(size.ffn, size.width, False, sequential=True),
        }

    def saved_bytes(self, element: int, *, dropout: bool) -> SavedBytes:
        """Return the bytes of four gates and their inputs, the cell before and after clipping, and its tanh. Also those
        of the projection's input, and of its output before and after clipping."""
        return SavedBytes(own=(12 * self.size.ffn + 2 * self.size.width) * element)

    def memory_traffic(self, element: int) -> MemoryTraffic:
        """Return the traffic: gates are read and written three times; cells and outputs together about as often."""
        passed = (3 * 2 * 4 * self.size.ffn + 12 * self.size.ffn + 4 * self.size.width) * element
        return MemoryTraffic(forward=passed, backward=2 * passed)


class LSTMBrick(Brick):
    """Base of torch's LSTMs. Rows of both linear layers: (input gate, forget gate, new value, output gate) by
    features."""

    kernels = 10
    reads: int
    """Input features of a position."""

    def lstm_maps(self, prefix: str = "") -> dict[str, LinearShape]:
        gates = 4 * self.size.ffn
        return {
            f"{prefix}input": LinearShape(self.reads, gates, True),
            f"{prefix}state": LinearShape(self.size.ffn, gates, True, sequential=True),
        }

    def saved_bytes(self, element: int, *, dropout: bool) -> SavedBytes:
        """Return the bytes of four gates and their inputs, the cell and its tanh, and the output."""
        return SavedBytes(own=self.directions * 11 * self.size.ffn * element)

    def memory_traffic(self, element: int) -> MemoryTraffic:
        passed = self.directions * (3 * 2 * 4 + 8) * self.size.ffn * element
        return MemoryTraffic(forward=passed, backward=2 * passed)

    directions = 1


@register("recurrent", "lstm-both-ways", "lstm-both-ways-first")
class BothWaysBrick(LSTMBrick):
    """Bidirectional LSTM (CoVe's encoder, arXiv:1708.00107, 3)."""

    directions = 2

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        super().__init__(block, size, memory)
        assert block.recurrent is not None
        self.reads = size.table_width if block.recurrent.first_layer else size.width
        self.maps = {**self.lstm_maps("ahead."), **self.lstm_maps("back.")}


@register("recurrent", "lstm-attentive")
class DecodingLSTMBrick(LSTMBrick):
    """Second or later layer of CoVe's decoder."""

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        super().__init__(block, size, memory)
        self.reads = size.width
        self.maps = self.lstm_maps()


@register("recurrent", "lstm-attentive-first")
class AttentiveLSTMBrick(LSTMBrick):
    """First layer of CoVe's decoder, with the attention of the decoder: a projection of its state, whose products with
    the encoder's output are the attention scores, and a projection of both."""

    kernels = 18

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        super().__init__(block, size, memory)
        self.reads = size.table_width + size.width
        self.maps = {
            **self.lstm_maps("lstm."),
            "attention.query": LinearShape(size.width, memory, True, sequential=True),
            "attention.merge": LinearShape(memory + size.width, size.width, True, sequential=True),
        }


def cache_width(block: Block, size: Size) -> int:
    """Return the features per position of the recurrence cache: the input of a layer; for an LSTM its output and
    cell."""
    return size.width + size.ffn if block.is_recurrent else size.width
