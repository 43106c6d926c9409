"""Gradients of a table that is looked up."""

import pytest
import torch

from megaptm.layers.split import Embedding, HeadTable

WIDTH = 8


class Kept:
    """An engine's sum."""

    def __init__(self, table):
        self.total = torch.zeros(table.shape)

    def added(self):
        return None


@pytest.mark.parametrize("kept", [False, True], ids=["of autograd", "of an engine"])
@pytest.mark.parametrize("table", [HeadTable, Embedding])
def test_many_small_gradients_of_one_row_are_not_lost_in_bfloat16(table, kept):
    """As of T5's bias on the scores, whose 32 rows are looked up for each pair of places."""
    made = table(4, WIDTH).bfloat16()
    if kept:
        made.weight.gradient_sum = Kept(made.weight)
    ids = (torch.arange(1 << 14) % 4).view(128, 128)
    gradient = torch.full((*ids.shape, WIDTH), 0.01, dtype=torch.bfloat16)
    made(ids).backward(gradient)
    found = made.weight.gradient_sum.total if kept else made.weight.grad.float()
    expected = torch.full_like(found, float(gradient.float().sum()) / 4 / WIDTH)
    torch.testing.assert_close(found, expected, rtol=5e-3, atol=0.0)
