"""Recurrent layers and stacks."""

# S sequence, B batch, D width, F features of a cell

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from megaptm.bricks import Brick, sublayers
from megaptm.errors import UserError
from megaptm.layers.lstm import LSTM, AttentiveLSTM, BothWays, decode
from megaptm.layers.mask import Mask
from megaptm.layers.recurrence_cache import StackCache
from megaptm.layers.split import Dropout, Linear
from megaptm.spec import Block, LSTMSpec, Size, value_errors

FIELDS = {"lstm": ("visibility",), "lstm-both-ways": (), "lstm-attentive": ("visibility", "cross")}
"""Kind of LSTM -> fields of a block that it reads."""

MODULES: dict[str, Callable[[Brick], nn.Module]] = {
    "lstm-both-ways-first": BothWays,
    "lstm-both-ways": BothWays,
    "lstm-attentive-first": AttentiveLSTM,
    "lstm-attentive": LSTM,
}


class ProjectedLSTM(nn.Module):
    """LSTM with a projection; cell state and projection are clipped (ELMo).

    As in the released code, the forget gate has a constant bias of 1, and the cell state is clipped before the output
    gate.
    """

    input: Linear
    state: Linear
    projection: Linear

    def __init__(self, brick: Brick) -> None:
        super().__init__()
        for name, map_ in brick.maps.items():
            self.add_module(name, Linear.of(map_))
        record = brick.block.recurrent
        assert record is not None
        self.cell_clip, self.projection_clip = record.cell_clip, record.projection_clip

    def forward(self, x_SBD: Tensor, before: Tensor, here_SB: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the output at each position [S, B, D], and the last state [B, D + F]: output and cell state.

        Positions outside `here` keep the state.
        """
        output_BD, cell_BF = before.split([self.projection.out_features, self.projection.in_features], -1)
        outputs = []
        for position, input_BG in enumerate(self.input(x_SBD).unbind(0)):
            enter, new, keep, leave = (input_BG + self.state(output_BD)).chunk(4, -1)
            cell = torch.sigmoid(keep + 1) * cell_BF + torch.sigmoid(enter) * torch.tanh(new)
            cell = cell.clamp(-self.cell_clip, self.cell_clip)
            now = self.projection(torch.sigmoid(leave) * torch.tanh(cell))
            now = now.clamp(-self.projection_clip, self.projection_clip)
            if here_SB is not None:
                here_B1 = here_SB[position][:, None]
                now, cell = torch.where(here_B1, now, output_BD), torch.where(here_B1, cell, cell_BF)
            output_BD, cell_BF = now, cell
            outputs.append(now)
        return torch.stack(outputs), torch.cat([output_BD, cell_BF], -1)


class LSTMLayer(nn.Module):
    """Layer of CoVe's encoder or decoder."""

    def __init__(self, block: Block, size: Size, *, memory: int | None) -> None:
        super().__init__()
        [sub] = sublayers(block, size, memory)
        self.recurrent = MODULES[sub.word](sub.brick)


class RecurrentLayer(nn.Module):
    """ELMo's layer. All but the first have a residual connection."""

    recurrent: ProjectedLSTM

    def __init__(self, block: Block, size: Size, *, number: int) -> None:
        super().__init__()
        [sub] = sublayers(block, size)
        self.recurrent, self.adds = ProjectedLSTM(sub.brick), number > 0

    def forward(self, x_SBD: Tensor, before: Tensor, here_SB: Tensor | None) -> tuple[Tensor, Tensor]:
        output_SBD, after = self.recurrent(x_SBD, before, here_SB)
        return (output_SBD + x_SBD if self.adds else output_SBD), after


class RecurrentStack(nn.ModuleDict):
    """Consecutive layers of a recurrent stack, under their global indices `0` ... `L-1`.

    Dropout is applied to the input of each layer but the first, whose input already had it, and to the last output.
    """

    def __init__(self, block: Block, size: Size, layers: range, *, dropout: float, memory: int | None = None) -> None:
        """`memory`: width of the stack that attention reads."""
        super().__init__()
        self.kind = check_recurrent(block, size).kind
        self.block, self.size, self.numbers = block, size, layers
        self.read: frozenset[int] = frozenset()
        """Indices of layers whose output is requested."""
        self["dropout"] = Dropout(dropout, region="residual")
        for number in layers:
            self[str(number)] = (
                RecurrentLayer(block, size, number=number)
                if self.kind == "lstm"
                else LSTMLayer(block.at(number), size, memory=memory)
            )

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        memory: Tensor | None = None,
        memory_mask: Mask | None = None,
        *,
        outputs: dict[int, Tensor] | None = None,
    ) -> Tensor:
        """Return [S, B, D] from the input [S, B, its width].

        States start from the recurrence cache, or from zero. Padding does not change a state. `outputs` receives the
        outputs of the layers in `read`.
        """
        if self.kind == "lstm-attentive":
            assert memory is not None
            return self._decode(x, mask, memory, memory_mask)
        if self.kind == "lstm-both-ways":
            return self._both_ways(x, mask, outputs)
        here_SB = None if mask.documents is None else mask.documents[0].t() > 0
        for number in self.numbers:
            x, after = self[str(number)](x, self._before(x, mask.cache, number), here_SB)
            if mask.cache is not None:
                mask.cache.current_states[number] = after.detach()[None]
            if outputs is not None and number in self.read:
                outputs[number] = x
            x = self["dropout"](x)
        return x

    def _both_ways(self, x: Tensor, mask: Mask, outputs: dict[int, Tensor] | None) -> Tensor:
        documents_BS = None if mask.documents is None else mask.documents[0]
        for number in self.numbers:
            x = self._lstm(number)(x, documents_BS)
            if outputs is not None and number in self.read:
                outputs[number] = x
            x = self["dropout"](x)
        return x

    def _decode(self, x: Tensor, mask: Mask, memory: Tensor, memory_mask: Mask | None) -> Tensor:
        mask_BSM = None if memory_mask is None or memory_mask.documents is None else memory_mask.dense.squeeze(1)
        x = decode(
            cast(AttentiveLSTM, self._lstm(0)),
            [cast(LSTM, self._lstm(number)) for number in self.numbers[1:]],
            x,
            memory,
            documents_BS=None if mask.documents is None else mask.documents[0],
            mask_BSM=mask_BSM,
            dropout=cast(Dropout, self["dropout"]),
        )
        return cast(Tensor, self["dropout"](x))

    def _lstm(self, number: int) -> nn.Module:
        return cast(LSTMLayer, self[str(number)]).recurrent

    def _before(self, x: Tensor, cache: StackCache | None, number: int) -> Tensor:
        """Return the initial state of each sequence, [B, D + F]."""
        if cache is None:
            return x.new_zeros(x.shape[1], self.size.width + self.size.ffn)
        return cache.states[number][0] * (cache.filled > 0)[:, None]


def check_recurrent(block: Block, size: Size) -> LSTMSpec:
    """Return the record of recurrent layers. Raise `UserError` if a field has no meaning for them."""
    record = block.recurrent
    assert record is not None
    if error := next(value_errors(block), None):
        raise UserError(f"Block.{error}")
    read = ("recurrent", *FIELDS[record.kind])
    ignored = (name for name, value in vars(Block()).items() if name not in read and getattr(block, name) != value)
    if name := next(ignored, None):
        raise UserError(f"Block.{name} has no meaning for recurrent layers ({record.kind}): leave it out.")
    if record.kind == "lstm" and not block.causal:
        raise UserError(
            f"Block.visibility is {block.visibility}, but an LSTM attends to no later position: use causal."
        )
    if record.kind == "lstm-attentive" and (block.cross is None or not block.causal):
        raise UserError(
            "Block.recurrent is lstm-attentive, a decoder that attends to an encoder: set `cross` to the name of the "
            "encoder, and `visibility` to causal."
        )
    directions = {"lstm-both-ways": 2, "lstm-attentive": 1}.get(record.kind)
    if directions is not None and size.width != directions * size.ffn:
        raise UserError(
            f"width is {size.width}, but the output of {record.kind} is {directions} x {size.ffn} wide: change one."
        )
    return record
