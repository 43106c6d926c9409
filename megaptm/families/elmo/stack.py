"""ELMo's LSTM layers and stacks."""

# S sequence, B batch, D width, F features of a cell

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from megaptm.families.elmo.spec import ProjectedLSTMSpec
from megaptm.layers.costs import LayerCosts
from megaptm.layers.layer_costs import sublayers
from megaptm.layers.recurrence_cache import StackRecurrenceCache
from megaptm.layers.split import Dropout, Linear
from megaptm.layers.stack import BaseStack, StackInputs
from megaptm.spec import Block, Size


class ProjectedLSTM(nn.Module):
    """LSTM with a projection; cell state and projection are clipped (ELMo).

    As in the released code, the forget gate has a constant bias of 1, and the cell state is clipped before the output
    gate.
    """

    input: Linear
    state: Linear
    projection: Linear

    def __init__(self, costs: LayerCosts) -> None:
        super().__init__()
        for name, linear in costs.linears.items():
            self.add_module(name, Linear.from_shape(linear))
        record = cast(ProjectedLSTMSpec, costs.block.layer)
        self.cell_clip, self.projection_clip = record.cell_clip, record.projection_clip

    def forward(self, x_SBD: Tensor, state: Tensor, valid_SB: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the output of ELMo's projected LSTM at each position [S, B, D], and the last state [B, D + F]: output
        and cell state.

        Positions where `valid_SB` is 0 do not change the state.
        """
        output_BD, cell_BF = state.split([self.projection.out_features, self.projection.in_features], -1)
        outputs = []
        for position, input_BG in enumerate(self.input(x_SBD).unbind(0)):
            input_gate, new, forget_gate, output_gate = (input_BG + self.state(output_BD)).chunk(4, -1)
            cell = torch.sigmoid(forget_gate + 1) * cell_BF + torch.sigmoid(input_gate) * torch.tanh(new)
            cell = cell.clamp(-self.cell_clip, self.cell_clip)
            output = self.projection(torch.sigmoid(output_gate) * torch.tanh(cell))
            output = output.clamp(-self.projection_clip, self.projection_clip)
            if valid_SB is not None:
                valid_B1 = valid_SB[position][:, None]
                output, cell = torch.where(valid_B1, output, output_BD), torch.where(valid_B1, cell, cell_BF)
            output_BD, cell_BF = output, cell
            outputs.append(output)
        return torch.stack(outputs), torch.cat([output_BD, cell_BF], -1)


class RecurrentLayer(nn.Module):
    """Layer of ELMo: an LSTM with a residual connection around all layers but the first."""

    recurrent: ProjectedLSTM

    def __init__(self, block: Block, size: Size, *, number: int) -> None:
        super().__init__()
        [sub] = sublayers(block, size)
        self.recurrent, self.adds = ProjectedLSTM(sub.costs), number > 0

    def forward(self, x_SBD: Tensor, state: Tensor, valid_SB: Tensor | None) -> tuple[Tensor, Tensor]:
        y_SBD, state = self.recurrent(x_SBD, state, valid_SB)
        return (y_SBD + x_SBD if self.adds else y_SBD), state


class ProjectedLSTMStack(BaseStack):
    """Stack of ELMo's LSTMs with projection. Dropout is applied to the output of each layer."""

    def __init__(
        self, block: Block, size: Size, layers: range, *, dropout: float, memory: int | None = None, context: int = 0
    ) -> None:
        super().__init__(block, size, layers)
        self["dropout"] = Dropout(dropout, masks="residual")
        for number in layers:
            self[str(number)] = RecurrentLayer(block, size, number=number)

    def forward(self, x: Tensor, inputs: StackInputs) -> Tensor:
        """Return the output of ELMo's stack [S, B, D] from [S, B, D]. States start from the recurrence cache, or from
        zero. Padding does not change a state."""
        documents = inputs.mask.documents
        valid_SB = None if documents is None else documents[0].t() > 0
        for number in self.layer_numbers:
            x, state = self[str(number)](x, self._initial_state(x, inputs.cache, number), valid_SB)
            if inputs.cache is not None:
                inputs.cache.current_states[number] = state.detach()[None]
            if number in self.read:
                inputs.outputs[number] = x
            x = self["dropout"](x)
        return x

    def _initial_state(self, x: Tensor, cache: StackRecurrenceCache | None, number: int) -> Tensor:
        """Return the initial LSTM state of each sequence, [B, D + F]."""
        if cache is None:
            return x.new_zeros(x.shape[1], self.size.width + self.size.ffn)
        return cache.states[number][0] * (cache.filled > 0)[:, None]
