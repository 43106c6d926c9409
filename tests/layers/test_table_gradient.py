"""Gradient of an output table, stored as two factors or as a sum of products."""

import pytest
import torch

from megaptm.layers import table_gradient
from megaptm.layers.table_gradient import TableGradient


class GradientSum:
    """Gradient sum of an engine."""

    def __init__(self) -> None:
        self.total = torch.ones(50, 12)

    def mark_added(self) -> None:
        return None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("chunk", [20, 7])
@pytest.mark.parametrize("rows", [0, 3, 20, 26])
def test_gradient_equals_the_product(monkeypatch, dtype, chunk, rows):
    monkeypatch.setattr(table_gradient, "NUMBERS_MULTIPLIED", 16 * 12)
    torch.manual_seed(0)
    weight, scale = torch.zeros(50, 12, dtype=dtype), torch.tensor(0.25)
    output_gradients, inputs = torch.randn(rows, 50, dtype=dtype), torch.randn(rows, 12, dtype=dtype)

    def accumulate():
        gradient = TableGradient(weight, rows=rows, chunk=chunk)
        for start in range(0, rows, chunk):
            gradient.add(output_gradients[start : start + chunk], inputs[start : start + chunk])
        return gradient

    expected, gradient_sum = output_gradients.double().t() @ inputs.double() / 4, GradientSum()
    tolerance = 1e-5 if dtype == torch.float32 else 2.0**-7
    gradient = accumulate().times(scale)
    assert gradient.dtype == dtype
    torch.testing.assert_close(gradient.double(), expected, rtol=tolerance, atol=tolerance)
    assert accumulate().add_to(gradient_sum, scale) is None
    torch.testing.assert_close(gradient_sum.total.double() - 1, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("rows", "chunk", "factors"), [(24, 32, True), (25, 32, False), (24, 20, False)])
def test_factors_are_stored_only_if_small(rows, chunk, factors):
    gradient = TableGradient(torch.zeros(50, 12), rows=rows, chunk=chunk)
    gradient.add(torch.ones(min(rows, chunk), 50), torch.ones(min(rows, chunk), 12))
    assert (gradient._factors is not None) == factors
    assert (gradient._total is None) == factors


@pytest.mark.parametrize(("device", "width", "parts"), [("cpu", 8, 1), ("meta", 768, 1), ("meta", 12288, 10)])
def test_accelerator_gets_few_large_products(device, width, parts):
    """The table has 50,304 rows."""
    gradient = TableGradient(torch.empty(50304, width, device=device), rows=2, chunk=1024)
    gradient.add(torch.empty(2, 50304, device=device), torch.empty(2, width, device=device))
    ranges = [rows for rows, _ in gradient._gradient_parts()]
    assert len(ranges) == parts
    assert sum(len(range(*rows.indices(50304))) for rows in ranges) == 50304
