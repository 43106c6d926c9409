"""Rotation of queries and keys, in passes over memory; bins of distances, whatever the device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from megaptm.bricks.attention import SelfAttentionBrick
from megaptm.families.deberta.attention import distance_rows
from megaptm.families.deberta.spec import DisentangledSpec
from megaptm.layers.positions import bias_buckets, rotate, rotation, score_bias
from megaptm.layers.split import HeadTable
from megaptm.spec import BIAS_BUCKETS, Block, Size

SIZE = Size(layers=1, width=512, heads=8, ffn=512)


class Moved(TorchDispatchMode):
    """Counts the bytes that operations read and write."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        found = [*args, *([result] if isinstance(result, torch.Tensor) else [])]
        if not func.is_view and func.overloadpacket is not torch.ops.aten.empty_like:
            self.bytes += sum(one.nbytes for one in found if isinstance(one, torch.Tensor))
        return result


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_rotation_moves_what_the_planner_counts(dtype: torch.dtype) -> None:
    places, heads, features = 256, SIZE.heads, SIZE.key_width
    queries = torch.randn(places, 4, heads, features, dtype=dtype, requires_grad=True)
    turned = rotation(torch.arange(places)[None], features=features, base=1e4)
    block = Block(position="rope")
    with_it, without = (
        SelfAttentionBrick(one, SIZE, SIZE.width).memory_traffic(dtype.itemsize)
        for one in (block, replace(block, position="none"))
    )
    with Moved() as forward:
        rotated = rotate(queries, turned)
    gradient = torch.ones_like(rotated)
    with Moved() as backward:
        rotated.backward(gradient)
    tokens = places * 4
    # Keys are turned as queries are; the angles, which heads share, come on top.
    assert 2 * forward.bytes == pytest.approx(tokens * (with_it.forward - without.forward), rel=0.05)
    assert 2 * backward.bytes == pytest.approx(tokens * (with_it.backward - without.backward), rel=0.05)


def bins() -> list[Tensor]:
    """T5's to both sides and back only, and those of DeBERTa-v2."""
    released = DisentangledSpec(num_distance_buckets=256)
    both, back = (bias_buckets(1, 600, bidirectional=one) for one in (True, False))
    return [both, back, bias_buckets(600, 1, bidirectional=False), distance_rows(600, released)]


@pytest.mark.parametrize("towards", [-torch.inf, torch.inf])
def test_no_bin_of_distances_depends_on_how_a_device_rounds(monkeypatch: pytest.MonkeyPatch, towards: float) -> None:
    """Logarithms of a GPU and of a CPU differ in their last bit, and some distances are the first of their bin."""
    really, usual = torch.log, bins()
    monkeypatch.setattr(torch, "log", lambda x: torch.nextafter(really(x), torch.full_like(x, towards)))
    assert all(map(torch.equal, bins(), usual))


@pytest.mark.parametrize(("queries", "keys"), [(5, 7), (7, 5), (1, 9), (9, 1)])
def test_a_bias_and_its_gradient_are_those_of_a_lookup_of_each_pair(queries, keys):
    table = HeadTable(BIAS_BUCKETS, 3)
    torch.nn.init.normal_(table.weight)
    looked_up = table.weight[bias_buckets(queries, keys, bidirectional=True)].permute(2, 0, 1)[None]
    found = score_bias(table, queries, keys, bidirectional=True)
    assert found.equal(looked_up)
    of_scores = torch.randn(found.shape)
    ours, theirs = (torch.autograd.grad(one, table.weight, of_scores)[0] for one in (found, looked_up))
    torch.testing.assert_close(ours, theirs)
