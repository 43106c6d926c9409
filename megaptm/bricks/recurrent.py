"""Layers that hand a state on from position to position."""

# D width, F features of a cell

from __future__ import annotations

from megaptm.bricks.brick import Brick, Map, MemoryTraffic, SavedBytes, register
from megaptm.spec import Block, Size


@register("recurrent", "lstm")
class ProjectedLSTMBrick(Brick):
    """An LSTM whose output is projected (arXiv:1402.1128), as in ELMo (arXiv:1802.05365): its gates read the stream and
    the projection of the position before. Rows of `input` and `state`: (input gate, new value, forget gate, output
    gate) by features.

    Tensor ranks each have all of it: gates of one position wait for those of the position before.
    """

    kernels = 14
    """Sum of products, four gates, their lean, two products, sum, clip, tangent, product, clip, and what is saved."""

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        super().__init__(block, size, memory)
        self.maps = {
            "input": Map(size.width, 4 * size.ffn, True),
            "state": Map(size.width, 4 * size.ffn, False, sequential=True),
            "projection": Map(size.ffn, size.width, False, sequential=True),
        }

    def saved_bytes(self, element: int, *, dropout: bool) -> SavedBytes:
        """Four gates and what they are made of, of a cell itself, clipped and not, and its tangent; what is projected;
        the projection clipped and not."""
        return SavedBytes(own=(12 * self.size.ffn + 2 * self.size.width) * element)

    def memory_traffic(self, element: int) -> MemoryTraffic:
        """Gates are read and written three times, cells and what they give about as often together."""
        passed = (3 * 2 * 4 * self.size.ffn + 12 * self.size.ffn + 4 * self.size.width) * element
        return MemoryTraffic(forward=passed, backward=2 * passed)


class LSTMBrick(Brick):
    """Base of LSTMs as torch has them. Rows of both maps: (input gate, forget gate, new value, output gate) by
    features."""

    kernels = 10
    reads: int
    """Numbers of a position that are read."""

    def lstm_maps(self, prefix: str = "") -> dict[str, Map]:
        gates = 4 * self.size.ffn
        return {
            f"{prefix}input": Map(self.reads, gates, True),
            f"{prefix}state": Map(self.size.ffn, gates, True, sequential=True),
        }

    def saved_bytes(self, element: int, *, dropout: bool) -> SavedBytes:
        """Four gates and what they are made of, of a cell itself and its tangent; what is given."""
        return SavedBytes(own=self.directions * 11 * self.size.ffn * element)

    def memory_traffic(self, element: int) -> MemoryTraffic:
        passed = self.directions * (3 * 2 * 4 + 8) * self.size.ffn * element
        return MemoryTraffic(forward=passed, backward=2 * passed)

    directions = 1


@register("recurrent", "lstm-both-ways", "lstm-both-ways-first")
class BothWaysBrick(LSTMBrick):
    """One on and one back, side by side (CoVe's encoder, arXiv:1708.00107, 3)."""

    directions = 2

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        super().__init__(block, size, memory)
        self.reads = size.table_width if block.recurrent.endswith("-first") else size.width
        self.maps = {**self.lstm_maps("ahead."), **self.lstm_maps("back.")}


@register("recurrent", "lstm-attentive")
class DecodingLSTMBrick(LSTMBrick):
    """A further layer of CoVe's decoder."""

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        super().__init__(block, size, memory)
        self.reads = size.width
        self.maps = self.lstm_maps()


@register("recurrent", "lstm-attentive-first")
class AttentiveLSTMBrick(LSTMBrick):
    """The first, with the attention of the last: a map of its state, whose products with the encoder's stream weigh
    that, and one of both."""

    kernels = 18

    def __init__(self, block: Block, size: Size, memory: int) -> None:
        super().__init__(block, size, memory)
        self.reads = size.table_width + size.width
        self.maps = {
            **self.lstm_maps("lstm."),
            "attention.query": Map(size.width, memory, True, sequential=True),
            "attention.merge": Map(memory + size.width, size.width, True, sequential=True),
        }


def past_width(block: Block, size: Size) -> int:
    """Numbers that a layer remembers of a position: what it read; or what an LSTM gave, and its cell."""
    return size.width + size.ffn if block.is_recurrent else size.width
