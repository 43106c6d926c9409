"""What one process's optimizer holds of a tensor of the model, and sums over the processes that hold the rest of it."""

# R rows and C columns of the slice that this tensor rank has, N rows of it that are held here, M matrices

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import parallel_state
from torch import Tensor, nn

from megaptm.parallel.split import Placement


@dataclass(frozen=True, eq=False)
class TensorPart:
    """A tensor rank's slice of a tensor; or, where data ranks divide the optimizer, a flat range of that slice."""

    place: Placement
    parameter: nn.Parameter
    """The slice, as the model has it."""
    master: Tensor | None
    """What the rule moves, in float32; None where another data rank moves all of the slice, or nobody does."""
    span: tuple[int, int] | None = None
    """The range that `master` is, where data ranks divide it."""

    @property
    def key(self) -> Tensor:
        """What the rule remembers of it stands under this in its `state`."""
        return self.parameter if self.master is None else self.master

    @property
    def matrices(self) -> int:
        """M: matrices of the paper's that are one here, as queries, keys and values are."""
        return self.place.matrices

    @property
    def length(self) -> int:
        """R; of a bias or the weight of a norm all that it has."""
        return self.parameter.shape[0] if self.parameter.dim() else 1

    @property
    def width(self) -> int:
        """C, 1 of a bias or the weight of a norm."""
        return math.prod(self.parameter.shape[1:])

    @property
    def rows(self) -> slice:
        """The rows of the slice that are held here, in whole or in part."""
        if self.span is None:
            return slice(0, self.length)
        start, stop = self.span
        return slice(start // self.width, -(-stop // self.width))

    @property
    def whole_width(self) -> int:
        """Columns of the whole tensor."""
        return math.prod(self.place.shape[1:])

    @property
    def whole_length(self) -> int:
        """Rows of each matrix of the whole tensor."""
        return (self.place.shape[0] if self.place.shape else 1) // self.matrices

    def by_row(self, held: Tensor) -> Tensor:
        """[N, C] of what has the form of `master`; zeros are in the place of what other data ranks hold."""
        if self.span is None:
            return held.reshape(-1, self.width)
        before, after = self.span[0] - self.rows.start * self.width, self.rows.stop * self.width - self.span[1]
        return F.pad(held, (before, after)).view(-1, self.width)

    def held(self, rows_NC: Tensor) -> Tensor:
        """The form of `master` again."""
        if self.span is None:
            return rows_NC.view(self.parameter.shape)
        before = self.span[0] - self.rows.start * self.width
        return rows_NC.reshape(-1)[before : before + self.span[1] - self.span[0]]

    def matrix_of_rows(self, rows: slice | None = None) -> Tensor:
        """[N] which matrix each of the rows held here is of, or each of some rows of the slice."""
        rows = self.rows if rows is None else rows
        numbers = torch.arange(rows.start, rows.stop, device=self.parameter.device)
        return numbers.div(self.place.turn, rounding_mode="floor") % self.matrices

    def sum_by_matrix(self, rows_N: Tensor, rows: slice | None = None) -> Tensor:
        """[M, ...]: the sum of what is known of each row."""
        if self.matrices == 1:
            return rows_N.sum(0, keepdim=True)
        # Not `index_add_`, whose sums on a GPU differ from time to time: copies on other ranks would drift apart.
        matrix_N = self.matrix_of_rows(rows).view(-1, *[1] * (rows_N.dim() - 1))
        return torch.stack([rows_N.masked_fill(matrix_N != one, 0.0).sum(0) for one in range(self.matrices)])

    def spread(self, known_M: Tensor, rows: slice | None = None) -> Tensor:
        """[N, ...] for each row what is known of its matrix; [1, ...] where there is one."""
        return known_M if self.matrices == 1 else known_M[self.matrix_of_rows(rows)]

    def squares(self, held: Tensor | None) -> Tensor:
        """[M] the sum of the squares of what is held here of each matrix; `held` has the form of `master`."""
        if held is None:
            return torch.zeros(self.matrices, device=self.parameter.device)
        if self.matrices == 1:
            return torch.linalg.vector_norm(held).square().view(1)
        return self.sum_by_matrix(torch.linalg.vector_norm(self.by_row(held), dim=1).square())


def add_up(values: Sequence[Tensor], *, sliced: Sequence[bool], divided: bool) -> list[Tensor]:
    """Each value summed over the ranks that know a part of it; all ranks have the same number, of the same shapes.

    `sliced`: whether tensor ranks know different parts of it, or all the same; `divided`: whether data ranks do.
    """
    if not values:
        return []
    order = sorted(range(len(values)), key=lambda index: not sliced[index])
    # In float64, so that it does not depend on the order in which ranks are summed: copies of a tensor on several
    # stages lie at different places of this, and must be moved alike.
    flat = torch.cat([values[index].reshape(-1) for index in order]).double()
    if divided:
        dist.all_reduce(flat, group=parallel_state.get_data_parallel_group())
    if count := sum(value.numel() for value, one in zip(values, sliced, strict=True) if one):
        dist.all_reduce(flat[:count], group=parallel_state.get_tensor_model_parallel_group())
    summed = dict(zip(order, flat.float().split([values[index].numel() for index in order]), strict=True))
    return [summed[index].view(value.shape) for index, value in enumerate(values)]
