"""Convolution along the sequence, next to a layer (DeBERTa-v2)."""

# S sequence (here or of all ranks), B batch, D width

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megaptm.families.deberta.costs import convolution_shape
from megaptm.layers.norm import Norm
from megaptm.layers.split import Dropout, Linear, SequenceHooks
from megaptm.spec import Block


class Convolution(SequenceHooks, nn.Module):
    """Convolution of width 3 over the positions of a document (DeBERTa-v2). Its result, after GELU, is added to the
    output of a layer, and the sum is normalized.

    Columns of `map` are ordered (neighbor, D): previous, own, next position.
    """

    def __init__(self, block: Block, width: int, *, dropout: float) -> None:
        super().__init__()
        self.map = Linear.from_shape(convolution_shape(width))
        self.norm = Norm(width, block.norm)
        self.dropout = Dropout(dropout, masks="residual")

    def forward(self, x_SBD: Tensor, output_SBD: Tensor, documents_BS: Tensor | None) -> Tensor:
        """Return the output of DeBERTa's convolution [S, B, D] from the input and the output of a layer."""
        full_SBD = self.gather_sequence(x_SBD)
        before, after = F.pad(full_SBD[:-1], (0, 0, 0, 0, 1, 0)), F.pad(full_SBD[1:], (0, 0, 0, 0, 0, 1))
        if documents_BS is not None:
            same_SB1 = (documents_BS[:, 1:] == documents_BS[:, :-1]).t()[:, :, None]
            before = before * F.pad(same_SB1, (0, 0, 0, 0, 1, 0))
            after = after * F.pad(same_SB1, (0, 0, 0, 0, 0, 1))
        neighbors = self.scatter_sequence(torch.cat([before, full_SBD, after], dim=-1))
        return self.norm(output_SBD + F.gelu(self.dropout(self.map(neighbors))))
