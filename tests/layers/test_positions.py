"""Rotary positions move the planned bytes, and distance buckets do not depend on the device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from megaptm.families.deberta.attention import distance_rows
from megaptm.families.deberta.spec import DisentangledSpec
from megaptm.layers.attention_costs import SelfAttentionCosts
from megaptm.layers.positions import apply_rotary_embedding, bias_buckets, rotary_embedding, score_bias, scores_by_key
from megaptm.layers.split import HeadTable
from megaptm.spec import BIAS_BUCKETS, AttentionSpec, Block, Size

SIZE = Size(layers=1, width=512, heads=8, ffn=512)


class MovedBytes(TorchDispatchMode):
    """Counts the bytes that operations read and write."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [*args, *([result] if isinstance(result, torch.Tensor) else [])]
        if not func.is_view and func.overloadpacket is not torch.ops.aten.empty_like:
            self.bytes += sum(tensor.nbytes for tensor in tensors if isinstance(tensor, torch.Tensor))
        return result


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rotation_moves_the_planned_bytes(dtype: torch.dtype) -> None:
    length, heads, features = 256, SIZE.heads, SIZE.key_width
    queries = torch.randn(length, 4, heads, features, dtype=dtype, requires_grad=True)
    turned = rotary_embedding(torch.arange(length)[None], features=features, rope=AttentionSpec().rope)
    block = Block(position="rope")
    with_it, without = (
        SelfAttentionCosts(variant, SIZE, SIZE.width).memory_traffic(dtype.itemsize)
        for variant in (block, replace(block, position="none"))
    )
    with MovedBytes() as forward:
        rotated = apply_rotary_embedding(queries, turned)
    gradient = torch.ones_like(rotated)
    with MovedBytes() as backward:
        rotated.backward(gradient)
    tokens = length * 4
    # Keys cost the same as queries. The angles, which heads share, are small.
    assert 2 * forward.bytes == pytest.approx(tokens * (with_it.forward - without.forward), rel=0.05)
    assert 2 * backward.bytes == pytest.approx(tokens * (with_it.backward - without.backward), rel=0.05)


def distance_buckets() -> list[Tensor]:
    """Return the buckets of T5, bidirectional and causal, and of DeBERTa-v2."""
    released = DisentangledSpec(num_distance_buckets=256)
    both, back = (bias_buckets(torch.arange(600), bidirectional=bidirectional) for bidirectional in (True, False))
    return [both, back, bias_buckets(-torch.arange(600), bidirectional=False), distance_rows(600, released)]


@pytest.mark.parametrize("towards", [-torch.inf, torch.inf])
def test_buckets_do_not_depend_on_rounding(monkeypatch: pytest.MonkeyPatch, towards: float) -> None:
    """Logarithms on GPU and CPU differ in the last bit, and some distances are the first of a bucket."""
    original, usual = torch.log, distance_buckets()
    monkeypatch.setattr(torch, "log", lambda x: torch.nextafter(original(x), torch.full_like(x, towards)))
    assert all(map(torch.equal, distance_buckets(), usual))


@pytest.mark.parametrize(("queries", "keys"), [(5, 7), (7, 5), (1, 9), (9, 1)])
def test_score_bias_equals_table_lookup(queries, keys):
    table = HeadTable(BIAS_BUCKETS, 3)
    torch.nn.init.normal_(table.weight)
    distances = torch.arange(keys)[None, :] - torch.arange(queries)[:, None]
    looked_up = table.weight[bias_buckets(distances, bidirectional=True)].permute(2, 0, 1)[None]
    bias = score_bias(table, range(queries), keys, bidirectional=True)
    assert bias.equal(looked_up)
    d_scores = torch.randn(bias.shape)
    gradient, expected = (torch.autograd.grad(result, table.weight, d_scores)[0] for result in (bias, looked_up))
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("compiling", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(5, 7), (7, 5), (1, 9), (9, 1)])
def test_scores_by_key_equal_gathered_scores(monkeypatch, queries, keys, compiling):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    # Strides of a product that is computed for all sequences at once.
    by_distance = torch.randn(2, queries, 3, queries + keys + 3).permute(2, 0, 1, 3).requires_grad_()
    indices = torch.arange(keys) - torch.arange(queries)[:, None] + queries - 1
    gathered, by_key = by_distance.gather(3, indices.expand(3, 2, -1, -1)), scores_by_key(by_distance, keys)
    assert by_key.equal(gathered)
    d_scores = torch.randn(by_key.shape)
    assert torch.equal(*(torch.autograd.grad(result, by_distance, d_scores)[0] for result in (by_key, gathered)))


@pytest.mark.parametrize("compiling", [False, True])
def test_causal_scores_need_only_distances_to_earlier_keys(monkeypatch, compiling):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    by_distance = torch.randn(6, 3, 2, 7).permute(1, 2, 0, 3).requires_grad_()
    indices = torch.arange(6) - torch.arange(6)[:, None] + 5
    causal, indices = indices <= 5, indices.clamp(max=6).expand(3, 2, -1, -1)
    by_key, gathered = (
        x.masked_fill(~causal, 0.0) for x in (scores_by_key(by_distance, 6), by_distance.gather(3, indices))
    )
    assert by_key.equal(gathered)
    d_scores = torch.randn(by_key.shape)
    assert torch.equal(*(torch.autograd.grad(result, by_distance, d_scores)[0] for result in (by_key, gathered)))
