"""Stacks of CoVe's encoder and decoder."""

# S sequence, B batch, D width, F features of a cell

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from megaptm.bricks import sublayers
from megaptm.families.cove.lstm import LSTM, AttentiveLSTM, BidirectionalLSTM, run_decoder
from megaptm.layers.layer import BaseStack
from megaptm.layers.mask import Mask
from megaptm.layers.split import Dropout
from megaptm.spec import Block, Size


class LSTMLayer(nn.Module):
    """LSTM under the name that it has in checkpoints."""

    def __init__(self, recurrent: nn.Module) -> None:
        super().__init__()
        self.recurrent = recurrent


class LSTMStack(BaseStack):
    """Base class of both stacks. Dropout is applied to the input of each layer but the first, whose input already had
    it, and to the last output."""

    def __init__(
        self, block: Block, size: Size, layers: range, *, dropout: float, memory: int | None = None, context: int = 0
    ) -> None:
        """`memory`: width of the stack that attention reads."""
        super().__init__(block, size, layers)
        self["dropout"] = Dropout(dropout, region="residual")
        for number in layers:
            [sub] = sublayers(block.at(number), size, memory)
            self[str(number)] = LSTMLayer(self.lstm_class(number)(sub.brick))

    def lstm_class(self, number: int) -> type[LSTM | AttentiveLSTM | BidirectionalLSTM]:
        """Return the module of a layer."""
        raise NotImplementedError

    def lstm(self, number: int) -> nn.Module:
        """Return the LSTM of a layer."""
        return cast(LSTMLayer, self[str(number)]).recurrent


class EncoderStack(LSTMStack):
    """Bidirectional LSTMs."""

    def lstm_class(self, number: int) -> type[BidirectionalLSTM]:
        return BidirectionalLSTM

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        memory: Tensor | None = None,
        memory_mask: Mask | None = None,
        positions: Tensor | None = None,
        outputs: dict[int, Tensor] | None = None,
        decode: bool = True,
    ) -> Tensor:
        """Return [S, B, D] from the input [S, B, its width]."""
        documents_BS = None if mask.documents is None else mask.documents[0]
        for number in self.numbers:
            x = self.lstm(number)(x, documents_BS)
            if outputs is not None and number in self.read:
                outputs[number] = x
            x = self["dropout"](x)
        return x


class DecoderStack(LSTMStack):
    """LSTMs with attention to the encoder and input feeding."""

    def lstm_class(self, number: int) -> type[LSTM | AttentiveLSTM]:
        return LSTM if number else AttentiveLSTM

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        memory: Tensor | None = None,
        memory_mask: Mask | None = None,
        positions: Tensor | None = None,
        outputs: dict[int, Tensor] | None = None,
        decode: bool = True,
    ) -> Tensor:
        """Return [S, B, D] from the input [S, B, its width] and the output of the encoder."""
        assert memory is not None
        attended_BSM = None if memory_mask is None or memory_mask.documents is None else memory_mask.dense.squeeze(1)
        x = run_decoder(
            cast(AttentiveLSTM, self.lstm(0)),
            [cast(LSTM, self.lstm(number)) for number in self.numbers[1:]],
            x,
            memory,
            documents_BS=None if mask.documents is None else mask.documents[0],
            attended_BSM=attended_BSM,
            dropout=cast(Dropout, self["dropout"]),
        )
        return cast(Tensor, self["dropout"](x))
