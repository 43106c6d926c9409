"""Attention by tiles equals attention with the whole mask, gradients too, and costs what may be seen."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from megaptm.bricks.pattern import Pattern, SlidingWindow
from megaptm.families.bigbird.pattern import SparseBlocks
from megaptm.layers.mask import Mask
from megaptm.layers.sparse import Marked, attend_by_tiles
from tests.models.strided import CROSS, NEAR_OR_FIRST, STRIDED

HEADS, KEY, SCALE = 3, 4, 0.5
PATTERNS: dict[str, tuple[Pattern, bool]] = {
    "window": (SlidingWindow(2, 2), False),
    "uneven window": (SlidingWindow(2, 3), False),
    "window of itself": (SlidingWindow(0, 0), False),
    "causal window": (SlidingWindow(3, 0), True),
    "dilated window": (SlidingWindow(2, 2, dilation=3), False),
    "causal dilated window": (SlidingWindow(3, 0, dilation=2), True),
    "blocks with edges": (SparseBlocks(4, 1, heads=range(HEADS)), False),
    "blocks without edges": (SparseBlocks(4, 2, edges=False, heads=range(HEADS)), False),
    "one's own, of all blocks in which it sees some": (NEAR_OR_FIRST, False),
    "one's own, of blocks that are said": (CROSS, False),
    "one's own, of what is before": (STRIDED, True),
}
LENGTHS = (64, 61)
"""Which blocks divide, and do not."""


def documents_of(kind: str, length: int) -> Tensor | None:
    """Two rows."""
    if kind == "one document":
        return None
    numbers = torch.ones(2, length, dtype=torch.long)
    numbers[:, length // 3 :] = 2
    numbers[1, -5:] = 0
    if kind == "a row of padding":
        numbers[1] = 0
    return numbers


def given(length: int, *, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Queries, keys and values [S, 2, H, K] as slices of one tensor, as layers have them."""
    generator = torch.Generator().manual_seed(length)
    joint = torch.randn(length, 2, HEADS, 3, KEY, generator=generator, dtype=dtype)
    return [one.detach().requires_grad_() for one in joint.unbind(3)]


def whole(x: list[Tensor], mask: Mask) -> Tensor:
    """With all scores, [S, B, H, K]."""
    q, k, v = (one.permute(1, 2, 0, 3) for one in x)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.dense, scale=SCALE).permute(2, 0, 1, 3)


@pytest.mark.parametrize("marking", [False, True])
@pytest.mark.parametrize("kind", ["one document", "packed", "a row of padding"])
@pytest.mark.parametrize("name", PATTERNS)
def test_tiles_give_what_the_whole_mask_gives(name: str, kind: str, marking: bool) -> None:
    pattern, causal = PATTERNS[name]
    for length in LENGTHS:
        documents = documents_of(kind, length)
        marks = None
        if marking:
            marks = torch.zeros(2, length, dtype=torch.long)
            marks[0, [0, 7]] = marks[1, 30] = 1
        both = None if documents is None else (documents, documents)
        mask = Mask((length, length), torch.device("cpu"), both, causal=causal, pattern=pattern, marks=marks)
        marked = None if marks is None else Marked.of(marks)
        x = given(length)
        mixed, expected = attend_by_tiles(*x, mask, marked, scale=SCALE, dropout=0.0), whole(x, mask)
        if marked is not None:
            q, k, v = (one.permute(1, 2, 0, 3) for one in (marked.take(x[0]), *x[1:]))
            rows = F.scaled_dot_product_attention(q, k, v, attn_mask=marked.see(mask), scale=SCALE)
            mixed = marked.put(mixed, rows.permute(2, 0, 1, 3))
        # Nobody reads what padding says.
        read = torch.ones(length, 2) if documents is None else (documents.t() > 0).double()
        assert ((mixed - expected).abs().amax((2, 3)) * read).max() < 1e-12
        back = torch.randn(mixed.shape, dtype=mixed.dtype) * read[:, :, None, None]
        for ours, theirs in zip(
            torch.autograd.grad(mixed, x, back), torch.autograd.grad(expected, x, back), strict=True
        ):
            assert (ours - theirs).abs().max() < 1e-12


@pytest.mark.parametrize("pattern", [SlidingWindow(4, 4), SparseBlocks(4, 1, edges=False, heads=range(HEADS))], ids=str)
def test_some_places_and_what_is_marked_are_not_all_places_where_they_are_as_many(pattern: Pattern) -> None:
    """The first tile has 8 places, of a window, or 12, of blocks; the marked ones make 16."""
    length, number = 16, 8 if pattern.tile_block == 0 else 4
    marks = torch.zeros(2, length, dtype=torch.long)
    marks[:, 4 : 4 + number] = 1
    mask = Mask((length, length), torch.device("cpu"), pattern=pattern, marks=marks)
    x, marked = given(length), Marked.of(marks)
    mixed, expected = attend_by_tiles(*x, mask, marked, scale=SCALE, dropout=0.0), whole(x, mask)
    back = torch.randn(mixed.shape, dtype=mixed.dtype) * (marks.t() == 0)[:, :, None, None]
    for ours, theirs in zip(torch.autograd.grad(mixed, x, back), torch.autograd.grad(expected, x, back), strict=True):
        assert (ours - theirs).abs().max() < 1e-12


def test_an_order_holds_within_a_window() -> None:
    """A prefix that sees itself whole, as far as the window goes."""
    length = 32
    order = (torch.arange(length) - 10).clamp(min=0).expand(2, -1)
    mask = Mask((length, length), torch.device("cpu"), order=order, pattern=SlidingWindow(4, 4))
    x = given(length)
    mixed = attend_by_tiles(*x, mask, None, scale=SCALE, dropout=0.0)
    torch.testing.assert_close(mixed, whole(x, mask), rtol=0, atol=1e-12)


def test_dropout_is_that_of_its_seed_and_of_its_rate() -> None:
    """Values of one are, after dropout, the sums of the weights kept: one in the mean. The backward pass drops the
    same: by differences, the gradient is that of the pass before."""
    q, k, _ = given(512)
    mask = Mask((512, 512), torch.device("cpu"), pattern=SlidingWindow(8, 8))

    def attend(v: Tensor) -> Tensor:
        torch.manual_seed(5)
        return attend_by_tiles(q, k, v, mask, None, scale=SCALE, dropout=0.25)

    ones = torch.ones(512, 2, HEADS, KEY, dtype=torch.float64)
    sums = attend(ones).detach()
    assert sums.std() > 0.05
    assert sums.mean() == pytest.approx(1, abs=0.01)
    small = [one.detach()[:9].clone().requires_grad_() for one in (q, k, ones)]
    near = Mask((9, 9), torch.device("cpu"), pattern=SlidingWindow(2, 2))

    def seeded(*x: Tensor) -> Tensor:
        torch.manual_seed(5)
        return attend_by_tiles(*x, near, None, scale=SCALE, dropout=0.25)

    assert torch.autograd.gradcheck(seeded, small)


@pytest.mark.parametrize(
    "pattern",
    [
        SlidingWindow(16, 16),
        SlidingWindow(16, 0),
        SlidingWindow(4, 4, dilation=4),
        SparseBlocks(16, 2),
        replace(NEAR_OR_FIRST, block=16),
    ],
    ids=str,
)
def test_operations_and_memory_grow_as_the_row_does(pattern: Pattern) -> None:
    """Counted: products as a pattern's pairs, and what is kept for the backward pass is queries, keys and values."""
    operations, kept = [], []
    for length in (1024, 4096):
        mask = Mask((length, length), torch.device("cpu"), causal=pattern == SlidingWindow(16, 0), pattern=pattern)
        x = [torch.randn(length, 1, 1, KEY, requires_grad=True) for _ in range(3)]
        saved: list[Tensor] = []
        with (
            FlopCounterMode(display=False) as counter,
            torch.autograd.graph.saved_tensors_hooks(
                lambda tensor, saved=saved: saved.append(tensor) or tensor, lambda tensor: tensor
            ),
        ):
            mixed = attend_by_tiles(*x, mask, None, scale=SCALE, dropout=0.0)
        assert counter.get_total_flops() == 2 * 2 * KEY * pattern.pairs(length)
        operations.append(counter.get_total_flops())
        kept.append(sum(one.numel() for one in saved))
        mixed.sum().backward()
    assert kept == [3 * 1024 * KEY, 3 * 4096 * KEY]
    assert np.log(operations[1] / operations[0]) / np.log(4) < 1.15


def test_blocks_see_what_the_paper_says() -> None:
    """Of 64 blocks of BigBird base: the first and the last see and are seen by all, the others three in a row, those
    two, and three drawn ones; none counts twice."""
    pattern = SparseBlocks(64, 3, heads=range(12))
    table = pattern.table(4096)
    numbers = table.sum(-1)
    assert (numbers[:, [0, 63]] == 64).all()
    assert table[:, :, [0, 63]].all()
    assert (numbers[:, [1, 62]] == 7).all()  # whose neighbor is the first or the last
    assert (numbers[:, 2:62] == 8).all()
    for row, step in itertools.product(range(1, 63), (-1, 0, 1)):
        assert table[:, row, row + step].all()
    for tile in pattern.tiles(4096):
        if not isinstance(tile.keys, slice):
            assert all(len(set(keys)) == len(keys) for keys in tile.keys.tolist())


def test_what_is_drawn_is_a_function_of_seed_layer_and_head() -> None:
    """So tensor ranks, each with some heads, have the tables of the whole; and each block is drawn as often."""
    table = SparseBlocks(4, 2, heads=range(4)).table(200)
    for rank in range(2):
        heads = range(2 * rank, 2 * rank + 2)
        assert (SparseBlocks(4, 2, heads=heads).table(200) == table[heads.start : heads.stop]).all()
    assert (table[0] != table[1]).any()
    assert (SparseBlocks(4, 2, layer=1, heads=range(4)).table(200) != table).any()
    others = {seed: SparseBlocks(4, 2, heads=range(4), seed=seed).table(200) for seed in (1, 2, 2**63)}
    assert all((other != table).any() for other in others.values())
    assert (others[1] != others[2]).any()
    assert (SparseBlocks(4, 2, heads=range(2, 4), seed=2).table(200) == others[2][2:]).all()
    drawn = sum(SparseBlocks(4, 2, layer=layer).table(80)[0].astype(int) for layer in range(300))
    row = drawn[10, [*range(1, 9), *range(12, 19)]]
    assert row.sum() == 600
    assert row.min() > 20
    assert row.max() < 62  # 40 each, and five standard deviations more or less


def test_short_rows_see_everything() -> None:
    assert SlidingWindow(7, 7).everything(8)
    assert not SlidingWindow(6, 7).everything(8)
    assert SparseBlocks(64, 3).everything(704)
    assert not SparseBlocks(64, 3).everything(705)


def test_keys_of_a_tile_and_marked_ones_that_are_as_many_as_the_row_has() -> None:
    """The first tile sees 32 of 48 places, and 16 that are marked: their gradients are not those of 48 places."""
    length = 48
    marks = torch.zeros(2, length, dtype=torch.long)
    marks[:, 20:36] = 1
    mask = Mask((length, length), torch.device("cpu"), pattern=SlidingWindow(16, 16), marks=marks)
    x = given(length)
    mixed, expected = attend_by_tiles(*x, mask, Marked.of(marks), scale=SCALE, dropout=0.0), whole(x, mask)
    back = torch.randn(mixed.shape, dtype=mixed.dtype) * (marks == 0).t()[:, :, None, None]
    for ours, theirs in zip(torch.autograd.grad(mixed, x, back), torch.autograd.grad(expected, x, back), strict=True):
        assert (ours - theirs).abs().max() < 1e-12
