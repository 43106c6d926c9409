"""Gradients of embedding tables are summed in float32."""

import pytest
import torch

from megaptm.layers.split import Embedding, HeadTable

WIDTH = 8


class GradientSum:
    """Gradient sum of an engine."""

    def __init__(self, table):
        self.total = torch.zeros(table.shape)

    def mark_added(self):
        return None


@pytest.mark.parametrize("has_gradient_sum", [False, True], ids=["autograd", "engine"])
@pytest.mark.parametrize("table", [HeadTable, Embedding])
def test_small_gradients_accumulate_in_bfloat16(table, has_gradient_sum):
    """T5's bias table needs this: its 32 rows are looked up for each pair of positions."""
    module = table(4, WIDTH).bfloat16()
    if has_gradient_sum:
        module.weight.gradient_sum = GradientSum(module.weight)
    ids = (torch.arange(1 << 14) % 4).view(128, 128)
    gradient = torch.full((*ids.shape, WIDTH), 0.01, dtype=torch.bfloat16)
    module(ids).backward(gradient)
    total = module.weight.gradient_sum.total if has_gradient_sum else module.weight.grad.float()
    expected = torch.full_like(total, float(gradient.float().sum()) / 4 / WIDTH)
    torch.testing.assert_close(total, expected, rtol=5e-3, atol=0.0)
