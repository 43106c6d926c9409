"""Gradients of a table: the way of a GPU and the way of a CPU are one sum."""

import torch

from megaptm.layers.accumulate import add_all_rows, add_distinct_rows

ROWS, WIDTH = 50, 8


def test_both_ways_of_adding_rows_give_one_sum():
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, ROWS // 2, (6, 20), generator=generator)
    gradient = torch.randn(6, 20, WIDTH, generator=generator)
    before = torch.randn(ROWS, WIDTH, generator=generator)
    expected = before.clone().index_add_(0, ids.reshape(-1), gradient.reshape(-1, WIDTH))
    for add in (add_all_rows, add_distinct_rows):
        total = before.clone()
        add(total, gradient, ids)
        torch.testing.assert_close(total, expected)
