"""LSTMs over sequences of several documents: unidirectional, bidirectional, and a decoder with attention (CoVe)."""

# S sequence, M encoder sequence, B batch, D width, F features of a cell

from __future__ import annotations

import torch
from torch import Tensor, nn

from megaptm.layers.costs import LayerCosts
from megaptm.layers.split import Dropout, Linear

LSTMState = tuple[Tensor, Tensor]
"""Output and cell state of CoVe's LSTM, both [B, F]."""


class LSTM(nn.Module):
    """LSTM layer. Rows of both projections are ordered (input gate, forget gate, new value, output gate), as in
    torch."""

    def __init__(self, costs: LayerCosts, prefix: str = "") -> None:
        super().__init__()
        self.input, self.state = (Linear.from_shape(costs.linears[f"{prefix}{name}"]) for name in ("input", "state"))

    def initial_state(self, x_SBD: Tensor) -> LSTMState:
        zeros_BF = x_SBD.new_zeros(x_SBD.shape[1], self.state.in_features)
        return zeros_BF, zeros_BF

    def advance(self, input_BG: Tensor, state: LSTMState) -> LSTMState:
        """Advance the state of CoVe's LSTM by one position. `input_BG`: output of the `input` projection at this
        position."""
        output_BF, cell_BF = state
        input_gate, forget_gate, new, output_gate = (input_BG + self.state(output_BF)).chunk(4, -1)
        cell_BF = torch.sigmoid(forget_gate) * cell_BF + torch.sigmoid(input_gate) * torch.tanh(new)
        return torch.sigmoid(output_gate) * torch.tanh(cell_BF), cell_BF

    def forward(self, x_SBD: Tensor, continues_SB1: Tensor | None, *, backward: bool = False) -> Tensor:
        """Return the output of CoVe's LSTM, [S, B, F]. The state is carried over from the previous position
        where `continues_SB1` is 1."""
        inputs, state, outputs = self.input(x_SBD), self.initial_state(x_SBD), []
        positions = range(len(inputs) - 1, -1, -1) if backward else range(len(inputs))
        for position in positions:
            if continues_SB1 is not None:
                state = _masked_state(state, continues_SB1[position])
            state = self.advance(inputs[position], state)
            outputs.append(state[0])
        return torch.stack(outputs[::-1] if backward else outputs)


def _masked_state(state: LSTMState, continues_B1: Tensor) -> LSTMState:
    return state[0] * continues_B1, state[1] * continues_B1


def _continues_document(documents_BS: Tensor | None, like: Tensor, *, backward: bool = False) -> Tensor | None:
    """Return whether the state of CoVe's LSTM continues, [S, B, 1]: 1 for a position in the same document as the
    position read before it."""
    if documents_BS is None:
        return None
    same_BS = documents_BS[:, 1:] == documents_BS[:, :-1]
    first_B1 = same_BS.new_zeros(len(same_BS), 1)
    same_BS = torch.cat([same_BS, first_B1] if backward else [first_B1, same_BS], 1)
    return same_BS.t()[:, :, None].to(like.dtype)


class BidirectionalLSTM(nn.Module):
    """Bidirectional LSTM. Each direction restarts at every document."""

    def __init__(self, costs: LayerCosts) -> None:
        super().__init__()
        self.ahead, self.back = LSTM(costs, "ahead."), LSTM(costs, "back.")

    def forward(self, x_SBD: Tensor, documents_BS: Tensor | None) -> Tensor:
        """Return the outputs of both directions of CoVe's LSTM, [S, B, 2 F]."""
        forward = self.ahead(x_SBD, _continues_document(documents_BS, x_SBD))
        backward = self.back(x_SBD, _continues_document(documents_BS, x_SBD, backward=True), backward=True)
        return torch.cat([forward, backward], -1)


class Attention(nn.Module):
    """Attention of a decoder (arXiv:1708.00107, 3): encoder states weighted by their products with the projected state,
    then a projection of context and state."""

    def __init__(self, costs: LayerCosts) -> None:
        super().__init__()
        self.query, self.merge = (
            Linear.from_shape(costs.linears["attention.query"]),
            Linear.from_shape(costs.linears["attention.merge"]),
        )

    def forward(self, state_BF: Tensor, memory_MBD: Tensor, attended_BM: Tensor | None) -> Tensor:
        """Return the attention output of CoVe's decoder, [B, width of the decoder]."""
        scores_BM = torch.einsum("bd,mbd->bm", self.query(state_BF), memory_MBD)
        if attended_BM is not None:
            scores_BM = scores_BM.masked_fill(~attended_BM, float("-inf"))
        context_BD = torch.einsum("bm,mbd->bd", scores_BM.softmax(-1), memory_MBD)
        return torch.tanh(self.merge(torch.cat([context_BD, state_BF], -1)))


class AttentiveLSTM(nn.Module):
    """First layer of a decoder with input feeding: it reads the token and the attention output of the previous
    position."""

    def __init__(self, costs: LayerCosts) -> None:
        super().__init__()
        self.lstm, self.attention = LSTM(costs, "lstm."), Attention(costs)


def run_decoder(
    first: AttentiveLSTM,
    later: list[LSTM],
    x_SBD: Tensor,
    memory_MBD: Tensor,
    *,
    documents_BS: Tensor | None,
    attended_BSM: Tensor | None,
    dropout: Dropout,
) -> Tensor:
    """Run CoVe's decoder: return the attention output at each position, [S, B, D], which the next position also reads.

    The state restarts at every document. Dropout is applied between layers.
    """
    lstms, continues_SB1 = [first.lstm, *later], _continues_document(documents_BS, x_SBD)
    states = [lstm.initial_state(x_SBD) for lstm in lstms]
    attention_BD = x_SBD.new_zeros(x_SBD.shape[1], first.attention.merge.out_features)
    outputs = []
    for position, x_BD in enumerate(x_SBD):
        if continues_SB1 is not None:
            states = [_masked_state(state, continues_SB1[position]) for state in states]
            attention_BD = attention_BD * continues_SB1[position]
        y_BD = torch.cat([x_BD, attention_BD], -1)
        for number, lstm in enumerate(lstms):
            states[number] = lstm.advance(lstm.input(y_BD), states[number])
            y_BD = dropout(states[number][0])
        attention_BD = first.attention(y_BD, memory_MBD, None if attended_BSM is None else attended_BSM[:, position])
        outputs.append(attention_BD)
    return torch.stack(outputs)
