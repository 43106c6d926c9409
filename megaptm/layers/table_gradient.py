"""The gradient of a table on which rows are projected, which a forward pass takes of its loss chunk by chunk.

Each chunk's is a product as large as the table. Of several the sum is kept; of one, where that is less, only the two
factors, and the backward pass multiplies them, some rows of the table at a time, straight into the engine's sum: the
product is nowhere whole. Two cores, 256 rows on 50,304 x 768 in bfloat16: 38 to 44 ms instead of 68.
"""

# C rows of a chunk, V rows of the table, D width

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from megaptm.bricks.head import keeps_factors
from megaptm.layers.accumulate import GradientSum, sum_dtype
from megaptm.layers.product import add_matmul, matmul

ROWS_MULTIPLIED = 4096
"""Rows of the table whose gradient is taken at once on a CPU, in whose cache it then is."""
NUMBERS_MULTIPLIED = 2**26
"""Of the gradient that is taken at once elsewhere, 256 MB in float32: a GPU would be sent more and smaller kernels."""


class TableGradient:
    """Of a table [V, D]: the sum over chunks of `left_CV.T @ right_CD`."""

    def __init__(self, weight_VD: Tensor, *, rows: int, chunk: int) -> None:
        """`rows`: of all chunks, each of so many at most."""
        self._weight, self._several = weight_VD, rows > chunk
        self._keeps_factors = not self._several and keeps_factors(rows, weight_VD.shape[1])
        self._factors: tuple[Tensor, Tensor] | None = None
        self._total: Tensor | None = None

    def add(self, left_CV: Tensor, right_CD: Tensor) -> None:
        """`left` may be kept, and is not to be written to any more."""
        if self._keeps_factors:
            self._factors = (left_CV, right_CD)
        elif self._total is None:
            product = matmul(left_CV.t(), right_CD)
            # bfloat16 would lose what is small beside the sum.
            self._total = product.to(sum_dtype(product.dtype)) if self._several else product
        else:
            add_matmul(self._total, left_CV.t(), right_CD)

    def times(self, d_loss: Tensor) -> Tensor:
        """[V, D], in the format of the table. Once: in place where it can."""
        if self._factors is not None:
            left, right = self._factors
            return matmul(left.t(), right).mul_(d_loss).to(self._weight.dtype)
        if self._total is None:
            return torch.zeros_like(self._weight)
        return self._total.mul_(d_loss).to(self._weight.dtype)

    def add_to(self, kept: GradientSum, d_loss: Tensor) -> Tensor | None:
        """To the engine's sum; gives what the backward pass returns for the table."""
        d_loss = d_loss.to(kept.total.dtype)
        for rows, gradient in self._parts():
            kept.total[rows].addcmul_(gradient.to(kept.total.dtype), d_loss)
        return kept.added()

    def _parts(self) -> Iterator[tuple[slice, Tensor]]:
        if self._total is not None:
            yield slice(None), self._total
        elif self._factors is not None:
            left, right = self._factors
            width = right.shape[1]
            once = ROWS_MULTIPLIED if right.device.type == "cpu" else max(1, NUMBERS_MULTIPLIED // width)
            for start in range(0, left.shape[1], once):
                rows = slice(start, start + once)
                yield rows, matmul(left[:, rows].t(), right)


def scaled(
    d_hidden: Tensor,
    d_weight: TableGradient,
    d_bias: Tensor | None,
    *,
    d_loss: Tensor,
    bias_dtype: torch.dtype | None,
    kept: GradientSum | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of rows, of a table and of its bias, which a forward pass took of its loss, times that of the loss. In
    place, so they serve once; the table's goes to the engine's sum where it is `kept`."""
    if d_bias is not None:
        d_bias = d_bias.mul_(d_loss).to(bias_dtype)
    of_table = d_weight.times(d_loss) if kept is None else d_weight.add_to(kept, d_loss)
    return d_hidden.mul_(d_loss), of_table, d_bias
