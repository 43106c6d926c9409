"""Attention by tiles equals attention with the dense mask, with gradients, and costs what the pattern attends to."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from megaptm.families.bigbird.pattern import SparseBlocks
from megaptm.families.reformer.pattern import ChunkPairs
from megaptm.layers import sparse
from megaptm.layers.mask import Mask
from megaptm.layers.pattern import Pattern, SlidingWindow
from megaptm.layers.sparse import GlobalPositions, attend_by_tiles
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
    "custom, blocks derived": (NEAR_OR_FIRST, False),
    "custom, blocks given": (CROSS, False),
    "custom, causal": (STRIDED, True),
}
LENGTHS = (64, 61)
"""One length divisible by the block sizes, one not."""


def document_ids_of(kind: str, length: int) -> Tensor | None:
    """Return document ids of two sequences."""
    if kind == "one document":
        return None
    numbers = torch.ones(2, length, dtype=torch.long)
    numbers[:, length // 3 :] = 2
    numbers[1, -5:] = 0
    if kind == "a sequence of padding":
        numbers[1] = 0
    return numbers


def random_qkv(length: int, *, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Return queries, keys and values [S, 2, H, K] as slices of one tensor, as in layers."""
    generator = torch.Generator().manual_seed(length)
    joint = torch.randn(length, 2, HEADS, 3, KEY, generator=generator, dtype=dtype)
    return [tensor.detach().requires_grad_() for tensor in joint.unbind(3)]


def dense_attention(x: list[Tensor], mask: Mask) -> Tensor:
    """Return attention with all scores, [S, B, H, K]."""
    q, k, v = (tensor.permute(1, 2, 0, 3) for tensor in x)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.dense, scale=SCALE).permute(2, 0, 1, 3)


@pytest.mark.parametrize("marking", [False, True])
@pytest.mark.parametrize("kind", ["one document", "packed", "a sequence of padding"])
@pytest.mark.parametrize("name", PATTERNS)
def test_tiles_equal_dense_mask(name: str, kind: str, marking: bool) -> None:
    pattern, causal = PATTERNS[name]
    for length in LENGTHS:
        documents = document_ids_of(kind, length)
        marks = None
        if marking:
            marks = torch.zeros(2, length, dtype=torch.long)
            marks[0, [0, 7]] = marks[1, 30] = 1
        both = None if documents is None else (documents, documents)
        mask = Mask((length, length), torch.device("cpu"), both, causal=causal, pattern=pattern, marks=marks)
        marked = None if marks is None else GlobalPositions.from_marks(marks)
        x = random_qkv(length)
        mixed, expected = attend_by_tiles(*x, mask, marked, scale=SCALE, dropout=0.0), dense_attention(x, mask)
        if marked is not None:
            q, k, v = (tensor.permute(1, 2, 0, 3) for tensor in (marked.gather(x[0]), *x[1:]))
            rows = F.scaled_dot_product_attention(q, k, v, attn_mask=marked.query_mask(mask), scale=SCALE)
            mixed = marked.scatter(mixed, rows.permute(2, 0, 1, 3))
        # Outputs of padding are not used.
        read = torch.ones(length, 2) if documents is None else (documents.t() > 0).double()
        assert ((mixed - expected).abs().amax((2, 3)) * read).max() < 1e-12
        back = torch.randn(mixed.shape, dtype=mixed.dtype) * read[:, :, None, None]
        gradients = (torch.autograd.grad(result, x, back) for result in (mixed, expected))
        for gradient, expected_gradient in zip(*gradients, strict=True):
            assert (gradient - expected_gradient).abs().max() < 1e-12


@pytest.mark.parametrize("pattern", [SlidingWindow(4, 4), SparseBlocks(4, 1, edges=False, heads=range(HEADS))], ids=str)
def test_tile_with_global_tokens_of_sequence_length(pattern: Pattern) -> None:
    """The first tile has 8 (window) or 12 (blocks) positions, and 16 with the global tokens: the sequence length."""
    length, number = 16, 8 if pattern.key_block_size == 0 else 4
    marks = torch.zeros(2, length, dtype=torch.long)
    marks[:, 4 : 4 + number] = 1
    mask = Mask((length, length), torch.device("cpu"), pattern=pattern, marks=marks)
    x, marked = random_qkv(length), GlobalPositions.from_marks(marks)
    mixed, expected = attend_by_tiles(*x, mask, marked, scale=SCALE, dropout=0.0), dense_attention(x, mask)
    back = torch.randn(mixed.shape, dtype=mixed.dtype) * (marks.t() == 0)[:, :, None, None]
    gradients = (torch.autograd.grad(result, x, back) for result in (mixed, expected))
    for gradient, expected_gradient in zip(*gradients, strict=True):
        assert (gradient - expected_gradient).abs().max() < 1e-12


def test_order_within_a_window() -> None:
    """The order is a bidirectional prefix, limited to the window."""
    length = 32
    order = (torch.arange(length) - 10).clamp(min=0).expand(2, -1)
    mask = Mask((length, length), torch.device("cpu"), order=order, pattern=SlidingWindow(4, 4))
    x = random_qkv(length)
    mixed = attend_by_tiles(*x, mask, None, scale=SCALE, dropout=0.0)
    torch.testing.assert_close(mixed, dense_attention(x, mask), rtol=0, atol=1e-12)


def test_dropout_has_its_rate_and_the_same_mask_in_backward() -> None:
    """With values of 1 the output is the sum of retained weights: 1 on average. The backward pass drops the same
    weights."""
    q, k, _ = random_qkv(512)
    mask = Mask((512, 512), torch.device("cpu"), pattern=SlidingWindow(8, 8))

    def attend(v: Tensor) -> Tensor:
        torch.manual_seed(5)
        return attend_by_tiles(q, k, v, mask, None, scale=SCALE, dropout=0.25)

    ones = torch.ones(512, 2, HEADS, KEY, dtype=torch.float64)
    sums = attend(ones).detach()
    assert sums.std() > 0.05
    assert sums.mean() == pytest.approx(1, abs=0.01)
    small = [tensor.detach()[:9].clone().requires_grad_() for tensor in (q, k, ones)]
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
def test_flops_and_memory_grow_linearly(pattern: Pattern) -> None:
    """FLOPs are those of the pattern's pairs; only queries, keys and values are saved for the backward pass."""
    operations, saved_elements = [], []
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
        saved_elements.append(sum(tensor.numel() for tensor in saved))
        mixed.sum().backward()
    assert saved_elements == [3 * 1024 * KEY, 3 * 4096 * KEY]
    assert np.log(operations[1] / operations[0]) / np.log(4) < 1.15


def test_bigbird_blocks_are_those_of_the_paper() -> None:
    """In BigBird base's 64 blocks, the first and the last attend to all and are attended by all.

    The others attend to three consecutive blocks, those two, and three random ones, each counted once.
    """
    pattern = SparseBlocks(64, 3, heads=range(12))
    table = pattern.table(4096)
    numbers = table.sum(-1)
    assert (numbers[:, [0, 63]] == 64).all()
    assert table[:, :, [0, 63]].all()
    assert (numbers[:, [1, 62]] == 7).all()  # a neighbor is the first or the last
    assert (numbers[:, 2:62] == 8).all()
    for row, step in itertools.product(range(1, 63), (-1, 0, 1)):
        assert table[:, row, row + step].all()
    for tile in pattern.tiles(4096):
        if not isinstance(tile.keys, slice):
            assert all(len(set(keys)) == len(keys) for keys in tile.keys.tolist())


def test_random_blocks_depend_on_seed_layer_and_head() -> None:
    """Tensor ranks, each with some heads, have the rows of the full table. Each block is equally likely."""
    table = SparseBlocks(4, 2, heads=range(4)).table(200)
    for rank in range(2):
        heads = range(2 * rank, 2 * rank + 2)
        assert (SparseBlocks(4, 2, heads=heads).table(200) == table[heads.start : heads.stop]).all()
    assert (table[0] != table[1]).any()
    assert (SparseBlocks(4, 2, layer=1, heads=range(4)).table(200) != table).any()
    tables_by_seed = {seed: SparseBlocks(4, 2, heads=range(4), seed=seed).table(200) for seed in (1, 2, 2**63)}
    assert all((other != table).any() for other in tables_by_seed.values())
    assert (tables_by_seed[1] != tables_by_seed[2]).any()
    assert (SparseBlocks(4, 2, heads=range(2, 4), seed=2).table(200) == tables_by_seed[2][2:]).all()
    counts = sum(SparseBlocks(4, 2, layer=layer).table(80)[0].astype(int) for layer in range(300))
    row = counts[10, [*range(1, 9), *range(12, 19)]]
    assert row.sum() == 600
    assert row.min() > 20
    assert row.max() < 62  # 40 each, and five standard deviations more or less


def test_short_sequences_are_attended_completely() -> None:
    assert SlidingWindow(7, 7).attends_to_all(8)
    assert not SlidingWindow(6, 7).attends_to_all(8)
    assert SparseBlocks(64, 3).attends_to_all(704)
    assert not SparseBlocks(64, 3).attends_to_all(705)


def test_gradients_of_tile_keys_and_global_keys() -> None:
    """The first tile attends to 32 of 48 positions and to 16 global ones, not to 48 different positions."""
    length = 48
    marks = torch.zeros(2, length, dtype=torch.long)
    marks[:, 20:36] = 1
    mask = Mask((length, length), torch.device("cpu"), pattern=SlidingWindow(16, 16), marks=marks)
    x = random_qkv(length)
    mixed, expected = (
        attend_by_tiles(*x, mask, GlobalPositions.from_marks(marks), scale=SCALE, dropout=0.0),
        dense_attention(x, mask),
    )
    back = torch.randn(mixed.shape, dtype=mixed.dtype) * (marks == 0).t()[:, :, None, None]
    gradients = (torch.autograd.grad(result, x, back) for result in (mixed, expected))
    for gradient, expected_gradient in zip(*gradients, strict=True):
        assert (gradient - expected_gradient).abs().max() < 1e-12


@pytest.mark.parametrize("content", ["", "packed", "marking", "packed marking ordered"])
@pytest.mark.parametrize("length", [64, 61])
@pytest.mark.parametrize(
    "pattern",
    [
        SparseBlocks(4, 1, heads=range(HEADS)),
        SparseBlocks(4, 1, edges=False, heads=range(HEADS)),
        replace(NEAR_OR_FIRST, block=4),
        SlidingWindow(3, 2),
        SlidingWindow(4, 0),
        SlidingWindow(2, 5, dilation=2),
        ChunkPairs(8),
    ],
    ids=["edges", "no edges", "custom", "window", "causal window", "dilated window", "chunks"],
)
def test_tiles_at_once_equal_single_tiles(
    pattern: Pattern, length: int, content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU consecutive tiles are computed at once, shorter ones of blocks with unused keys."""
    documents = document_ids_of("packed" if "packed" in content else "one document", length)
    marks = None
    if "marking" in content:
        marks = torch.zeros(2, length, dtype=torch.long)
        marks[0, [0, 7]] = marks[1, 30] = 1
    order = (torch.arange(length) - 20).clamp(min=0).expand(2, -1) if "ordered" in content else None
    both = None if documents is None else (documents, documents)
    mask = Mask(
        (length, length),
        torch.device("cpu"),
        both,
        causal=pattern == SlidingWindow(4, 0),
        order=order,
        pattern=pattern,
        marks=marks,
    )
    x, results = random_qkv(length), []
    for limit in (0, sparse.MAX_SCORES, 2 * HEADS * 400):
        monkeypatch.setattr(sparse, "max_scores", lambda device, limit=limit: limit)
        mixed = attend_by_tiles(
            *x, mask, None if marks is None else GlobalPositions.from_marks(marks), scale=SCALE, dropout=0.0
        )
        back = torch.randn(mixed.shape, dtype=mixed.dtype, generator=torch.Generator().manual_seed(1))
        results.append((mixed.detach(), *torch.autograd.grad(mixed, x, back)))
    for single, *at_once in zip(*results, strict=True):
        assert max((single - result).abs().max() for result in at_once) < 1e-12


def test_dropout_of_tiles_at_once_is_the_same_in_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "max_scores", lambda device: sparse.MAX_SCORES)
    mask = Mask((10, 10), torch.device("cpu"), pattern=SparseBlocks(2, 1, edges=False, heads=range(HEADS)))

    def attend(*x: Tensor) -> Tensor:
        torch.manual_seed(5)
        return attend_by_tiles(*x, mask, None, scale=SCALE, dropout=0.25)

    assert torch.autograd.gradcheck(attend, random_qkv(10))


def test_scores_at_once_are_limited() -> None:
    """BigBird-base, four sequences of 4,096: the first and last block attend to all, the other 62 are computed at
    once."""
    pattern, device, rows = SparseBlocks(64, 3, heads=range(12)), torch.device("cpu"), 4 * 12
    numbers = [tile.number for tile in sparse._tiles_on(pattern, 4096, device, None, sparse.MAX_SCORES // rows)]
    assert numbers == [1, 62, 1]
    limited = sparse._tiles_on(pattern, 4096, device, None, 10 * 64 * 8 * 64)
    assert [tile.number for tile in limited] == [1, *[10] * 6, 2, 1]
    windows = sparse._tiles_on(SlidingWindow(256, 256), 4096, device, None, sparse.MAX_SCORES // rows)
    assert [tile.number for tile in windows] == [1, 1, 28, 1, 1]
    assert sparse.max_scores(torch.device("cpu")) == 0
