"""Optimal transport: the plan of a plain loop and of the released code, its margins, and distances that are known."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from megaptm.losses.transport import cosine_costs, transport_distance, transport_plan

GOLDEN = Path(__file__).parents[1] / "golden/uniter_transport.safetensors"


def plan_by_a_loop(costs: list[list[float]], rounds: int) -> Tensor:
    """Algorithm 1 of arXiv:1802.04307 with one inner round, number by number: words [T] to regions [R]."""
    words, regions = range(len(costs)), range(len(costs[0]))
    plan = [[1.0 for _ in regions] for _ in words]
    scale = [1 / len(words) for _ in words]
    for _ in range(rounds):
        moved = [[math.exp(-costs[t][r] / 0.5) * plan[t][r] for r in regions] for t in words]
        got = [1 / (len(regions) * sum(moved[t][r] * scale[t] for t in words)) for r in regions]
        scale = [1 / (len(words) * sum(moved[t][r] * got[r] for r in regions)) for t in words]
        plan = [[scale[t] * moved[t][r] * got[r] for r in regions] for t in words]
    return torch.tensor(plan, dtype=torch.float64)


def padded_case() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    words = torch.randn(3, 6, 8, generator=generator, dtype=torch.float64)
    regions = torch.randn(3, 9, 8, generator=generator, dtype=torch.float64)
    lengths = torch.tensor([6, 4, 1]), torch.tensor([9, 2, 5])
    there = [torch.arange(x.shape[1]) < length[:, None] for x, length in zip((words, regions), lengths, strict=True)]
    return words, regions, *there


@pytest.mark.parametrize("rounds", [1, 2, 50])
def test_the_plan_is_that_of_a_plain_loop(rounds):
    words, regions, words_there, regions_there = padded_case()
    costs = cosine_costs(words, regions)
    plans = transport_plan(costs, words_there, regions_there, rounds=rounds)
    for plan, cost, some, others in zip(plans, costs, words_there.sum(1), regions_there.sum(1), strict=True):
        known = plan_by_a_loop(cost[:some, :others].tolist(), rounds)
        assert torch.allclose(plan[:some, :others], known, rtol=0, atol=1e-12)
        assert plan.sum().item() == pytest.approx(1, abs=1e-12)
        assert plan[some:].count_nonzero() == plan[:, others:].count_nonzero() == 0


def test_words_give_all_that_they_have_and_regions_get_nearly_as_much():
    words, regions, words_there, regions_there = padded_case()
    missing = []
    for rounds in (50, 500):
        plans = transport_plan(cosine_costs(words, regions), words_there, regions_there, rounds=rounds)
        shares = words_there.double() / words_there.sum(1, keepdim=True)
        assert torch.allclose(plans.sum(2), shares, rtol=0, atol=1e-12)
        missing.append((plans.sum(1) * regions_there.sum(1, keepdim=True) - regions_there.double()).abs().max().item())
    assert missing[1] < missing[0] < 0.05


def test_plans_distances_and_gradients_are_those_of_the_released_code():
    known = load_file(GOLDEN)
    words, regions = (known[name].requires_grad_() for name in ("text", "image"))
    words_there, regions_there = (known[name] == 0 for name in ("text_pad", "image_pad"))
    pairs = words_there[:, :, None] & regions_there[:, None, :]
    costs = cosine_costs(words, regions).detach()
    assert torch.allclose(costs * pairs, known["cost"] * pairs, atol=1e-6)
    for rounds in (1, 5, 50, 200):
        plan = transport_plan(costs, words_there, regions_there, rounds=rounds)
        assert torch.allclose(plan, known[f"plan_{rounds}"].transpose(1, 2), atol=1e-6), rounds
    distances = transport_distance(words, regions, words_there, regions_there)
    assert torch.allclose(distances, known["distance"], atol=1e-6)
    distances.sum().backward()
    assert torch.allclose(words.grad, known["grad_text"], atol=1e-6)
    assert torch.allclose(regions.grad, known["grad_image"], atol=1e-6)


def test_nothing_is_moved_where_regions_are_the_words_in_another_order():
    words = torch.eye(4, dtype=torch.float64)[None] * torch.tensor([1.0, 2.0, 3.0, 4.0])[:, None]
    there = torch.ones(1, 4, dtype=torch.bool)
    assert transport_distance(words, words.flip(1), there, there).item() == pytest.approx(0, abs=1e-12)


def test_one_word_goes_everywhere_and_a_row_of_nothing_is_0():
    words, regions, words_there, regions_there = padded_case()
    words_there[2], regions_there[2] = torch.arange(6) < 1, torch.arange(9) < 5
    regions_there[1] = False
    words.requires_grad_()
    distances = transport_distance(words, regions, words_there, regions_there)
    assert distances[2].item() == pytest.approx(cosine_costs(words, regions)[2, 0, :5].mean().item(), abs=1e-12)
    assert distances[1].item() == 0
    distances.sum().backward()
    assert words.grad.isfinite().all()
