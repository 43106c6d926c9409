"""The gradient of a table on which rows are projected, kept as two factors or as a sum of products."""

import pytest
import torch

from megaptm.layers import table_gradient
from megaptm.layers.table_gradient import TableGradient


class Sum:
    """What an engine keeps."""

    def __init__(self) -> None:
        self.total = torch.ones(50, 12)

    def added(self) -> None:
        return None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("chunk", [20, 7])
@pytest.mark.parametrize("rows", [0, 3, 20, 26])
def test_it_is_the_product_whoever_takes_it_and_when(monkeypatch, dtype, chunk, rows):
    monkeypatch.setattr(table_gradient, "NUMBERS_MULTIPLIED", 16 * 12)
    torch.manual_seed(0)
    weight, scale = torch.zeros(50, 12, dtype=dtype), torch.tensor(0.25)
    left, right = torch.randn(rows, 50, dtype=dtype), torch.randn(rows, 12, dtype=dtype)

    def taken():
        gradient = TableGradient(weight, rows=rows, chunk=chunk)
        for start in range(0, rows, chunk):
            gradient.add(left[start : start + chunk], right[start : start + chunk])
        return gradient

    expected, kept = left.double().t() @ right.double() / 4, Sum()
    tolerance = 1e-5 if dtype == torch.float32 else 2.0**-7
    found = taken().times(scale)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)
    assert taken().add_to(kept, scale) is None
    torch.testing.assert_close(kept.total.double() - 1, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("rows", "chunk", "factors"), [(24, 32, True), (25, 32, False), (24, 20, False)])
def test_factors_are_kept_of_one_chunk_alone_where_they_are_not_much_more_than_the_product(rows, chunk, factors):
    gradient = TableGradient(torch.zeros(50, 12), rows=rows, chunk=chunk)
    gradient.add(torch.ones(min(rows, chunk), 50), torch.ones(min(rows, chunk), 12))
    assert (gradient._factors is not None) == factors
    assert (gradient._total is None) == factors


@pytest.mark.parametrize(("device", "width", "parts"), [("cpu", 8, 1), ("meta", 768, 1), ("meta", 12288, 10)])
def test_an_accelerator_is_sent_few_large_products(device, width, parts):
    """Of a table of 50,304 rows."""
    gradient = TableGradient(torch.empty(50304, width, device=device), rows=2, chunk=1024)
    gradient.add(torch.empty(2, 50304, device=device), torch.empty(2, width, device=device))
    found = [rows for rows, _ in gradient._parts()]
    assert len(found) == parts
    assert sum(len(range(*rows.indices(50304))) for rows in found) == 50304
