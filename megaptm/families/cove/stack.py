"""Stacks of CoVe's encoder and decoder."""

# S sequence, B batch, D width, F features of a cell

from __future__ import annotations

from typing import ClassVar, cast

from torch import Tensor, nn

from megaptm.families.cove.lstm import LSTM, AttentiveLSTM, BidirectionalLSTM, run_decoder
from megaptm.layers.layer_costs import sublayers
from megaptm.layers.split import Dropout
from megaptm.layers.stack import BaseStack, StackInputs
from megaptm.spec import Block, Size


class LSTMLayer(nn.Module):
    """LSTM under the name that it has in checkpoints."""

    def __init__(self, recurrent: nn.Module) -> None:
        super().__init__()
        self.recurrent = recurrent


class LSTMStack(BaseStack):
    """Base class of CoVe's stacks. Dropout is applied to the last output and to the input of each layer. The input of
    the first layer is an exception, because it had dropout before."""

    lstm_classes: ClassVar[tuple[type[LSTM | AttentiveLSTM | BidirectionalLSTM], ...]]
    """Module classes of CoVe's first layers. All further layers have the last of these classes."""

    def __init__(
        self, block: Block, size: Size, layers: range, *, dropout: float, memory: int | None = None, context: int = 0
    ) -> None:
        """Build the stack. `memory`: width of the stack that attention reads."""
        super().__init__(block, size, layers)
        self["dropout"] = Dropout(dropout, masks="residual")
        for number in layers:
            [sub] = sublayers(block.at(number), size, memory)
            lstm_class = self.lstm_classes[min(number, len(self.lstm_classes) - 1)]
            self[str(number)] = LSTMLayer(lstm_class(sub.costs))

    def lstm(self, number: int) -> nn.Module:
        """Return the LSTM of a layer of CoVe's stack."""
        return cast(LSTMLayer, self[str(number)]).recurrent


class EncoderStack(LSTMStack):
    """Encoder of CoVe: bidirectional LSTMs."""

    lstm_classes = (BidirectionalLSTM,)

    def forward(self, x: Tensor, inputs: StackInputs) -> Tensor:
        """Return the output of CoVe's encoder [S, B, D] from the input [S, B, its width]."""
        documents = inputs.mask.documents
        for number in self.layer_numbers:
            x = self.lstm(number)(x, None if documents is None else documents[0])
            if number in self.read:
                inputs.outputs[number] = x
            x = self["dropout"](x)
        return x


class DecoderStack(LSTMStack):
    """Decoder of CoVe: LSTMs with attention to the encoder and input feeding."""

    lstm_classes = (AttentiveLSTM, LSTM)

    def forward(self, x: Tensor, inputs: StackInputs) -> Tensor:
        """Return the output of CoVe's decoder [S, B, D] from the input [S, B, its width] and the output of the
        encoder."""
        documents, memory_mask = inputs.mask.documents, inputs.memory_mask
        assert inputs.memory is not None
        attended_BSM = None if memory_mask is None or memory_mask.documents is None else memory_mask.dense.squeeze(1)
        x = run_decoder(
            cast(AttentiveLSTM, self.lstm(0)),
            [cast(LSTM, self.lstm(number)) for number in self.layer_numbers[1:]],
            x,
            inputs.memory,
            documents_BS=None if documents is None else documents[0],
            attended_BSM=attended_BSM,
            dropout=cast(Dropout, self["dropout"]),
        )
        return cast(Tensor, self["dropout"](x))
