"""Gradient of a vocabulary projection's table, computed in the forward pass of the loss, chunk by chunk.

Each chunk's gradient is a product as large as the table. For several chunks the sum is saved. For one chunk the two
factors are saved if they are smaller. The backward pass then multiplies them for some rows of the table at a time,
directly into the engine's buffer, so that the full product need not exist.
"""

# C samples of a chunk, V rows of the table, D width

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from megaptm.layers.accumulate import GradientSum, add_product, adds_products_in_float32, product_in_float32
from megaptm.layers.table_gradient_costs import keeps_factors

NUMBERS_MULTIPLIED = 2**26
"""Number of elements of the table's gradient computed at once, 256 MB in float32: few and large kernels."""


class TableGradient:
    """Gradient of a table [V, D]: the sum over chunks of `left_CV.T @ right_CD`."""

    def __init__(self, weight_VD: Tensor, *, rows: int, chunk: int) -> None:
        """Allocate the gradient of the table. `rows`: samples of all chunks. `chunk`: largest number of samples of a
        chunk."""
        self._weight, self._several = weight_VD, rows > chunk
        self._keeps_factors = not self._several and keeps_factors(rows, weight_VD.shape[1])
        self._factors: tuple[Tensor, Tensor] | None = None
        self._total: Tensor | None = None

    def add(self, left_CV: Tensor, right_CD: Tensor) -> None:
        """Add the product of a chunk to the table's gradient. `left` may be saved and must not be changed
        afterwards."""
        if self._keeps_factors:
            self._factors = (left_CV, right_CD)
        elif self._total is not None:
            add_product(self._total, left_CV.t(), right_CD)
        elif self._several or adds_products_in_float32(left_CV):
            # bfloat16 would lose small terms of the sum.
            self._total = product_in_float32(left_CV.t(), right_CD)
        else:
            self._total = left_CV.t() @ right_CD

    def times(self, d_loss: Tensor) -> Tensor:
        """Return the gradient [V, D] of the table in its dtype, multiplied by a factor. Can be called once: it works in
        place."""
        if self._factors is not None:
            left, right_factor = self._factors
            return (left.t() @ right_factor).mul_(d_loss).to(self._weight.dtype)
        if self._total is None:
            return torch.zeros_like(self._weight)
        return self._total.mul_(d_loss).to(self._weight.dtype)

    def add_to(self, gradient_sum: GradientSum, d_loss: Tensor) -> Tensor | None:
        """Add the table's gradient to the engine's buffer. Return the value that the backward pass returns for the
        table."""
        total = gradient_sum.total
        if self._factors is not None and (
            self._factors[0].dtype == total.dtype or adds_products_in_float32(self._factors[0])
        ):
            left, right_factor = self._factors
            add_product(total, left.t(), right_factor * d_loss.to(right_factor.dtype))
            return gradient_sum.mark_added()
        d_loss = d_loss.to(total.dtype)
        for rows, gradient in self._gradient_parts():
            total[rows].addcmul_(gradient.to(total.dtype), d_loss)
        return gradient_sum.mark_added()

    def _gradient_parts(self) -> Iterator[tuple[slice, Tensor]]:
        if self._total is not None:
            yield slice(None), self._total
        elif self._factors is not None:
            left, right_factor = self._factors
            once = max(1, NUMBERS_MULTIPLIED // right_factor.shape[1])
            for start in range(0, left.shape[1], once):
                rows = slice(start, start + once)
                yield rows, left[:, rows].t() @ right_factor


def scale_gradients(
    d_hidden: Tensor,
    d_weight: TableGradient,
    d_bias: Tensor | None,
    *,
    d_loss: Tensor,
    bias_dtype: torch.dtype | None,
    gradient_sum: GradientSum | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Scale gradients of hidden states, table and bias from the forward pass by the gradient of the loss.

    It works in place and can be called once. The table's gradient goes to the engine's buffer, if `gradient_sum` is
    given.
    """
    if d_bias is not None:
        d_bias = d_bias.mul_(d_loss).to(bias_dtype)
    of_table = d_weight.times(d_loss) if gradient_sum is None else d_weight.add_to(gradient_sum, d_loss)
    return d_hidden.mul_(d_loss), of_table, d_bias
