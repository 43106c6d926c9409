"""Context ranks: their positions, and attention of all of them together equals attention of complete sequences."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from megaptm.layers.attention import Attend
from megaptm.layers.context import ContextRanks
from megaptm.layers.kernels import repeat_for_heads
from megaptm.layers.mask import Mask
from megaptm.layers.varlen import context_offsets
from tests.layers.flash_on_cpu import flash_on_cpu

LENGTH, ROWS = 48, 2
DOCUMENTS = torch.ones(ROWS, LENGTH, dtype=torch.int64)
DOCUMENTS[0, 7:] = 2
DOCUMENTS[1, 30:] = 2
DOCUMENTS[1, 45:] = 0


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_ranks_divide_all_positions(size: int) -> None:
    chunks = [chunk for rank in range(size) for chunk in ContextRanks(rank, size).chunks(LENGTH)]
    assert sorted(position for chunk in chunks for position in chunk) == [*range(LENGTH)]


@pytest.mark.parametrize("size", [2, 3, 8])
def test_causal_attention_is_balanced(size: int) -> None:
    """The number of earlier keys of all positions is the same on each rank."""
    pairs = {sum(map(sum, ContextRanks(rank, size).chunks(LENGTH))) for rank in range(size)}
    assert len(pairs) == 1


def test_gather_restores_the_order_of_positions() -> None:
    full = torch.arange(LENGTH)[:, None, None, None]
    parts = [ContextRanks(rank, 3).own_part(full, 0) for rank in range(3)]
    context = ContextRanks(1, 3, lambda part: torch.stack([torch.cat(parts), torch.cat(parts)], 1))
    assert all(gathered.equal(full) for gathered in context.gather(parts[1], parts[1]))


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, documents: Tensor | None, size: int, by_offsets: bool
) -> Tensor:
    """Return attention output [S, B, H*K] in the order of positions, computed rank by rank."""
    output = q.new_zeros(*q.shape[:2], q.shape[2] * q.shape[3])
    for rank in range(size):

        def gather(_: Tensor) -> Tensor:
            both = torch.stack([k, v], 1)
            return torch.cat([ContextRanks(other, size).own_part(both, 0) for other in range(size)])

        context = ContextRanks(rank, size, gather)
        module = Attend(causal=causal, scale=0.3, dropout=0.0)
        module.context = context
        positions = context.positions(LENGTH, q.device)
        pair = None if documents is None else (documents, documents)
        mask = Mask((len(positions), LENGTH), q.device, pair, causal=causal, queries=positions).for_kernel(None)
        if by_offsets:
            ids = torch.ones(ROWS, LENGTH, dtype=torch.int64) if documents is None else documents
            mask = context_offsets(ids, ids, context.chunks(LENGTH), causal=causal)
        output[positions] = module(*(context.own_part(x, 0) for x in (q, k, v)), mask)
    return output


@pytest.mark.parametrize("by_offsets", [False, True], ids=["dense", "offsets"])
@pytest.mark.parametrize("documents", [None, DOCUMENTS], ids=["one document", "documents"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("size", [2, 3])
def test_attention_equals_that_of_complete_sequences(
    size: int, causal: bool, documents: Tensor | None, by_offsets: bool
) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(LENGTH, ROWS, heads, 8, requires_grad=True) for heads in (4, 2, 2))
    pair = None if documents is None else (documents, documents)
    mask = Mask((LENGTH, LENGTH), q.device, pair, causal=causal).for_kernel(None)
    expected = Attend(causal=causal, scale=0.3, dropout=0.0)(q, repeat_for_heads(k, 4), repeat_for_heads(v, 4), mask)
    with flash_on_cpu() if by_offsets else nullcontext():
        actual = attend(q, k, v, causal=causal, documents=documents, size=size, by_offsets=by_offsets)
        read = slice(None) if documents is None else (documents > 0).t()
        torch.testing.assert_close(actual[read], expected[read])
        d_output = torch.randn(actual[read].shape)
        gradients = torch.autograd.grad(actual[read], (q, k, v), d_output)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected[read], (q, k, v), d_output))
