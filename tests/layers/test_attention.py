"""Attention equals its formula, and a slice of its weights computes some of its heads."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from megaptm.layers import attention
from megaptm.layers.attention import CrossAttention, SelfAttention
from megaptm.layers.costs import LayerCosts
from megaptm.layers.layer_costs import sublayers
from megaptm.layers.mask import Mask
from megaptm.layers.pattern import SlidingWindow
from megaptm.spec import AttentionSpec, Block, Size

WIDTH, HEADS, KEY = 24, 4, 8


def filled(module: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.3)
    return module.eval()


def costs(name: str, *, heads: int = HEADS, kv_heads: int | None = None, **options: Any) -> LayerCosts:
    size = Size(layers=1, width=WIDTH, heads=heads, ffn=8, head_width=KEY, kv_heads=kv_heads)
    return next(sub.costs for sub in sublayers(Block(cross="encoder", **options), size) if sub.name == name)


def self_attention(*, causal: bool = False) -> SelfAttention:
    module = SelfAttention(costs("attention", visibility="causal" if causal else "full"), dropout=0.0)
    filled(module)
    return module


def by_formula(q_BHSK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, mask: Tensor) -> Tensor:
    """Return softmax(q k / sqrt(K)) v, [S, B, H*K]."""
    scores = q_BHSK @ k_BHSK.transpose(-1, -2) / math.sqrt(KEY)
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    return (weights @ v_BHSK).permute(2, 0, 1, 3).flatten(2)


def split_heads(x_SBE: Tensor) -> Tensor:
    """Reshape [S, B, H*K] to [B, H, S, K]."""
    return x_SBE.unflatten(-1, (-1, KEY)).permute(1, 2, 0, 3)


def test_self_attention_equals_its_formula() -> None:
    x = torch.randn(6, 2, WIDTH)
    rows = torch.arange(HEADS * 3 * KEY).view(HEADS, 3, KEY)
    for causal in (False, True):
        module = self_attention(causal=causal)
        q, k, v = (
            split_heads(x @ module.qkv.weight[rows[:, n].flatten()].t() + module.qkv.bias[rows[:, n].flatten()])
            for n in range(3)
        )
        mask = torch.ones(6, 6, dtype=torch.bool)
        expected = module.output(by_formula(q, k, v, mask.tril() if causal else mask))
        torch.testing.assert_close(module(x, None), expected, rtol=1e-5, atol=1e-5)


def test_tensor_slices_sum_to_the_module() -> None:
    """Two ranks with half of the rows of `qkv` and of the columns of `output` sum to the full module."""
    full_module, x = self_attention(), torch.randn(5, 2, WIDTH)
    total = full_module.output.bias
    for rank in range(2):
        half = SelfAttention(costs("attention", heads=HEADS // 2), dropout=0.0).eval()
        with torch.no_grad():
            half.qkv.weight.copy_(full_module.qkv.weight.chunk(2)[rank])
            half.qkv.bias.copy_(full_module.qkv.bias.chunk(2)[rank])
            half.output.weight.copy_(full_module.output.weight.chunk(2, 1)[rank])
            half.output.bias.zero_()
        total = total + half(x, None)
    torch.testing.assert_close(total, full_module(x, None), rtol=1e-5, atol=1e-5)


def test_cross_attention_equals_its_formula() -> None:
    module = CrossAttention(costs("cross", attention=AttentionSpec(bias=False)), dropout=0.0)
    filled(module)
    x, memory = torch.randn(3, 2, WIDTH), torch.randn(7, 2, WIDTH)
    rows = torch.arange(HEADS * 2 * KEY).view(HEADS, 2, KEY)
    k, v = (split_heads(memory @ module.kv.weight[rows[:, n].flatten()].t()) for n in range(2))
    expected = module.output(by_formula(split_heads(module.query(x)), k, v, torch.ones(3, 7, dtype=torch.bool)))
    torch.testing.assert_close(module(x, memory, None), expected, rtol=1e-5, atol=1e-5)


def test_dropout_is_active_in_training_only() -> None:
    module = SelfAttention(costs("attention", visibility="causal", attention=AttentionSpec(scale="none")), dropout=0.5)
    filled(module)
    x = torch.randn(6, 2, WIDTH)
    assert module(x, None).equal(module(x, None))
    module.train()
    assert not module(x, None).equal(module(x, None))


def test_mask_of_packed_causal_sequence() -> None:
    documents = torch.tensor([[1, 1, 2, 2, 0]])
    mask = Mask((5, 5), documents.device, (documents, documents), causal=True)
    expected = torch.tensor(
        [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 1, 0], [1, 1, 1, 1, 1]], dtype=torch.bool
    )
    assert mask.dense[0, 0].equal(expected)


def test_scores_are_absent_without_documents_and_bias() -> None:
    bias = torch.zeros(1, 2, 4, 4)
    causal, full = (Mask((4, 4), bias.device, causal=direction) for direction in (True, False))
    assert causal.for_kernel(None) is None
    assert full.for_kernel(bias) is bias
    assert causal.for_kernel(bias)[0, 0].isinf().equal(torch.ones(4, 4, dtype=torch.bool).triu(1))


@pytest.mark.parametrize("causal", [True, False])
def test_band_masks_distant_positions(causal: bool) -> None:
    """A banded layer equals a dense one whose mask has the band, also within documents."""
    module = self_attention(causal=causal)
    x, documents = torch.randn(7, 2, WIDTH), torch.tensor([[1, 1, 1, 1, 1, 2, 2], [1, 1, 1, 1, 1, 1, 1]])
    distance = torch.arange(7)[:, None] - torch.arange(7)
    near = (distance < 3) & (distance >= 0 if causal else distance > -3)
    for ids in (None, (documents, documents)):
        mask = Mask((7, 7), documents.device, ids, causal=causal)
        dense_mask = near & (documents[:, None, :, None] == documents[:, None, None]) if ids else near[None, None]
        assert mask.with_pattern(SlidingWindow(2, 2)).dense.equal(dense_mask)
        torch.testing.assert_close(
            module(x, mask.with_pattern(SlidingWindow(2, 2)).for_kernel(None)), module(x, dense_mask), rtol=0, atol=1e-6
        )
        assert mask.with_pattern(SlidingWindow(6, 6)) is mask


def test_tensor_slices_of_multi_query_attention_sum_to_the_module() -> None:
    """Two ranks with half of the queries and the same single head of keys and values sum to the full module."""
    grouped = costs("attention", kv_heads=1)
    full_module, x = SelfAttention(grouped, dropout=0.0), torch.randn(5, 2, WIDTH)
    filled(full_module)
    k, v = (x @ full_module.kv.weight.t() + full_module.kv.bias).unflatten(-1, (1, 2, KEY)).permute(3, 1, 2, 0, 4)
    mask = torch.ones(5, 5, dtype=torch.bool)
    expected = full_module.output(by_formula(split_heads(full_module.query(x)), k, v, mask))
    torch.testing.assert_close(full_module(x, None), expected, rtol=1e-5, atol=1e-5)
    total = full_module.output.bias
    for rank in range(2):
        half = SelfAttention(costs("attention", heads=HEADS // 2, kv_heads=1), dropout=0.0).eval()
        with torch.no_grad():
            half.query.weight.copy_(full_module.query.weight.chunk(2)[rank])
            half.query.bias.copy_(full_module.query.bias.chunk(2)[rank])
            half.kv.load_state_dict(full_module.kv.state_dict())
            half.output.weight.copy_(full_module.output.weight.chunk(2, 1)[rank])
            half.output.bias.zero_()
        total = total + half(x, None)
    torch.testing.assert_close(total, full_module(x, None), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("allowed", [True, False])
def test_masked_attention_disables_cudnn(monkeypatch: pytest.MonkeyPatch, allowed: bool) -> None:
    """Without a mask torch's setting is respected, and it is restored after each call."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    original, is_cudnn_enabled = attention.F.scaled_dot_product_attention, []

    def watched(*args: Any, **kwargs: Any) -> Tensor:
        is_cudnn_enabled.append(torch.backends.cuda.cudnn_sdp_enabled())
        return original(*args, **kwargs)

    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", watched)
    module, x = self_attention(), torch.randn(5, 2, WIDTH)
    torch.backends.cuda.enable_cudnn_sdp(allowed)
    try:
        module(x, None)
        module(x, torch.ones(2, 1, 5, 5, dtype=torch.bool))
        module(x, torch.zeros(2, HEADS, 5, 5))
        is_cudnn_enabled.append(torch.backends.cuda.cudnn_sdp_enabled())
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
    assert is_cudnn_enabled == [allowed, False, False, allowed]
