"""Part of a tensor that the optimizer of one rank holds, and sums over the ranks with the other parts."""

# R rows and C columns of this tensor rank's slice, N rows of the slice that are held here, M matrices

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import parallel_state
from torch import Tensor, nn

from megaptm.config.sections.optimizer import UPDATE_BATCH
from megaptm.parallel.groups import Ranks, replica_group
from megaptm.parallel.split import Placement


@dataclass(frozen=True, eq=False)
class TensorPart:
    """Part of a weight that one rank's optimizer holds: the slice of a tensor rank or, with the distributed optimizer,
    a flat range of that slice."""

    placement: Placement
    parameter: nn.Parameter
    """Slice of the weight in the model of this tensor rank."""
    master: Tensor | None
    """Float32 tensor that the update rule changes; None if another data rank updates the full slice, or the weight is
    frozen."""
    span: tuple[int, int] | None = None
    """Range of the slice that `master` holds, if the slice is sharded over data ranks."""

    @property
    def key(self) -> Tensor:
        """Key of this tensor in the `state` of the update rule."""
        return self.parameter if self.master is None else self.master

    @property
    def replica(self) -> Tensor:
        """Tensor with the same values on all data ranks: float32, unless it is sharded over them."""
        return self.parameter if self.master is None or self.span is not None else self.master

    @property
    def is_tied_copy(self) -> bool:
        """Whether this is a tied parameter whose first copy is in another chunk or stage."""
        return getattr(self.parameter, "shared", False)

    def is_first_copy(self, ranks: Ranks) -> bool:
        """Whether this rank saves and counts a part: of equal copies on several ranks, only the first."""
        return (
            not self.is_tied_copy
            and (self.placement.axis is not None or ranks.tensor == 0)
            and (self.span is not None or ranks.replica == 0)
        )

    @property
    def matrices(self) -> int:
        """Number M of matrices of the paper that are stored as one weight, such as queries, keys and values."""
        return self.placement.matrices

    @property
    def length(self) -> int:
        """Number R of rows of this tensor rank's slice of the weight; for biases and norms the number of elements."""
        return self.parameter.shape[0] if self.parameter.dim() else 1

    @property
    def width(self) -> int:
        """Number C of columns of this tensor rank's slice of the weight; 1 for biases and norms."""
        return math.prod(self.parameter.shape[1:])

    @property
    def rows(self) -> slice:
        """Rows of the slice that this rank's optimizer holds, completely or in part."""
        if self.span is None:
            return slice(0, self.length)
        start, stop = self.span
        return slice(start // self.width, -(-stop // self.width))

    @property
    def full_width(self) -> int:
        """Number of columns of the full weight."""
        return math.prod(self.placement.shape[1:])

    @property
    def full_length(self) -> int:
        """Number of rows of each matrix of the full weight."""
        return (self.placement.shape[0] if self.placement.shape else 1) // self.matrices

    def by_row(self, local: Tensor) -> Tensor:
        """Return a tensor of the shape of `master` by rows, [N, C]; elements of other data ranks are 0."""
        if self.span is None:
            return local.reshape(-1, self.width)
        before, after = self.span[0] - self.rows.start * self.width, self.rows.stop * self.width - self.span[1]
        return F.pad(local, (before, after)).view(-1, self.width)

    def in_local_shape(self, rows_NC: Tensor) -> Tensor:
        """Return a tensor [N, C] in the shape of `master`; the inverse of `by_row`."""
        if self.span is None:
            return rows_NC.view(self.parameter.shape)
        before = self.span[0] - self.rows.start * self.width
        return rows_NC.reshape(-1)[before : before + self.span[1] - self.span[0]]

    def matrix_of_rows(self, rows: slice | None = None) -> Tensor:
        """Return the matrix index [N] of each row that this rank holds, or of each of the given rows of the slice."""
        rows = self.rows if rows is None else rows
        indices = torch.arange(rows.start, rows.stop, device=self.parameter.device)
        return indices.div(self.placement.interleave, rounding_mode="floor") % self.matrices

    def sum_by_matrix(self, rows_N: Tensor, rows: slice | None = None) -> Tensor:
        """Return sums [M, ...] over the rows of each matrix of a weight."""
        if self.matrices == 1:
            return rows_N.sum(0, keepdim=True)
        if self._has_full_turns(rows):
            return rows_N.unflatten(0, (-1, self.matrices, self.placement.interleave)).sum((0, 2))
        # `index_add_` sums in varying order on a GPU: copies on other ranks would diverge.
        matrix_N = self.matrix_of_rows(rows).view(-1, *[1] * (rows_N.dim() - 1))
        return torch.stack([rows_N.masked_fill(matrix_N != index, 0.0).sum(0) for index in range(self.matrices)])

    def expand_to_rows(self, values_M: Tensor, rows: slice | None = None) -> Tensor:
        """Return values [N, ...] by row from values by matrix; [1, ...] if there is one matrix."""
        if self.matrices == 1:
            return values_M
        if not self._has_full_turns(rows):
            return values_M[self.matrix_of_rows(rows)]
        rows = self.rows if rows is None else rows
        turns = (rows.stop - rows.start) // (self.matrices * self.placement.interleave)
        shape = (turns, self.matrices, self.placement.interleave, *values_M.shape[1:])
        return values_M.unsqueeze(1).expand(*shape).flatten(0, 2)

    def _has_full_turns(self, rows: slice | None) -> bool:
        """Whether the rows that this rank holds start at the first matrix and end with the last, so that a view
        separates the matrices."""
        rows, turn = self.rows if rows is None else rows, self.matrices * self.placement.interleave
        return rows.start % turn == rows.stop % turn == 0

    def sum_squares(self, local: Tensor | None) -> Tensor:
        """Return the sum of squares [M] of the elements of each matrix that this rank holds. `local` has the shape of
        `master`."""
        if local is None:
            return torch.zeros(self.matrices, device=self.parameter.device)
        if self.matrices == 1:
            return torch.linalg.vector_norm(local).square().view(1)
        return self.sum_by_matrix(torch.linalg.vector_norm(self.by_row(local), dim=1).square())


def update_batches(sizes: Sequence[int], ranks: int = 1) -> list[range]:
    """Divide tensors of these sizes, in order, into batches of at most `UPDATE_BATCH` elements for each of `ranks`.
    Return their indices."""
    batches, start, total = [], 0, 0
    for index, size in enumerate(sizes):
        if index > start and total + size > ranks * UPDATE_BATCH:
            batches.append(range(start, index))
            start, total = index, 0
        total += size
    return [*batches, range(start, len(sizes))] if sizes else []


def sum_over_ranks(values: Sequence[Tensor], *, sliced: Sequence[bool], divided: bool) -> list[Tensor]:
    """Sum each value over the ranks that hold a part of a weight. All ranks pass equally many values of the same
    shapes.

    `sliced`: whether tensor ranks hold different parts of a value. `divided`: whether data ranks do.
    """
    if not values:
        return []
    order = sorted(range(len(values)), key=lambda index: not sliced[index])
    # In float64, so that the order of ranks does not matter: copies of a tensor on several stages are at different
    # offsets here, and must get equal updates.
    flat = torch.cat([values[index].reshape(-1) for index in order]).double()
    if divided:
        dist.all_reduce(flat, group=replica_group())
    if count := sum(value.numel() for value, is_sliced in zip(values, sliced, strict=True) if is_sliced):
        dist.all_reduce(flat[:count], group=parallel_state.get_tensor_model_parallel_group())
    summed = dict(zip(order, flat.float().split([values[index].numel() for index in order]), strict=True))
    return [summed[index].view(value.shape) for index, value in enumerate(values)]
