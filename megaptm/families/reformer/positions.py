"""Axial position embeddings of Reformer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from megaptm.errors import UserError
from megaptm.families.reformer.spec import AxialInput, axial_grid, axial_widths
from megaptm.layers.split import Embedding
from megaptm.spec import ModelSpec


class AxialPositions(nn.Module):
    """Axial position embedding: concatenated row and column embeddings of a grid (arXiv:2001.04451, section 2)."""

    def __init__(self, spec: ModelSpec, record: AxialInput) -> None:
        super().__init__()
        (rows, self.columns), widths = axial_grid(spec), axial_widths(spec)
        if rows * self.columns != spec.context:
            raise UserError(
                f"model.axial ({rows} x {self.columns}) must have as many positions as model.context ({spec.context}): "
                "change either."
            )
        self.row, self.column = Embedding(rows, widths[0]), Embedding(self.columns, widths[1])

    def forward(self, positions: Tensor) -> Tensor:
        """Return Reformer's axial embedding of positions, [..., D]."""
        known = self.row.rows * self.columns
        if len(positions) > known:
            raise UserError(f"A sequence of {len(positions)} has no axial positions; the model has {known}.")
        return torch.cat([self.row(positions // self.columns), self.column(positions % self.columns)], -1)
