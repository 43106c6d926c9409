"""Optimal transport: plan, marginals and distances."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from megaptm.families.uniter.transport import cosine_costs, transport_distance, transport_plan

GOLDEN = Path(__file__).parents[1] / "golden/uniter_transport.safetensors"


def plan_by_loop(costs: list[list[float]], rounds: int) -> Tensor:
    """Run algorithm 1 of arXiv:1802.04307 with one inner iteration in Python floats: words [T] to regions [R]."""
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
    valid = [torch.arange(x.shape[1]) < length[:, None] for x, length in zip((words, regions), lengths, strict=True)]
    return words, regions, *valid


@pytest.mark.parametrize("rounds", [1, 2, 50])
def test_transport_plan_equals_a_loop(rounds):
    words, regions, valid_words, valid_regions = padded_case()
    costs = cosine_costs(words, regions)
    plans = transport_plan(costs, valid_words, valid_regions, rounds=rounds)
    for plan, cost, num_words, num_regions in zip(plans, costs, valid_words.sum(1), valid_regions.sum(1), strict=True):
        expected = plan_by_loop(cost[:num_words, :num_regions].tolist(), rounds)
        assert torch.allclose(plan[:num_words, :num_regions], expected, rtol=0, atol=1e-12)
        assert plan.sum().item() == pytest.approx(1, abs=1e-12)
        assert plan[num_words:].count_nonzero() == plan[:, num_regions:].count_nonzero() == 0


def test_transport_plan_row_sums_are_exact_and_column_sums_converge():
    words, regions, valid_words, valid_regions = padded_case()
    missing = []
    for rounds in (50, 500):
        plans = transport_plan(cosine_costs(words, regions), valid_words, valid_regions, rounds=rounds)
        shares = valid_words.double() / valid_words.sum(1, keepdim=True)
        assert torch.allclose(plans.sum(2), shares, rtol=0, atol=1e-12)
        missing.append((plans.sum(1) * valid_regions.sum(1, keepdim=True) - valid_regions.double()).abs().max().item())
    assert missing[1] < missing[0] < 0.05


def test_transport_equals_released_code():
    golden = load_file(GOLDEN)
    words, regions = (golden[name].requires_grad_() for name in ("text", "image"))
    valid_words, valid_regions = (golden[name] == 0 for name in ("text_pad", "image_pad"))
    pairs = valid_words[:, :, None] & valid_regions[:, None, :]
    costs = cosine_costs(words, regions).detach()
    assert torch.allclose(costs * pairs, golden["cost"] * pairs, atol=1e-6)
    for rounds in (1, 5, 50, 200):
        plan = transport_plan(costs, valid_words, valid_regions, rounds=rounds)
        assert torch.allclose(plan, golden[f"plan_{rounds}"].transpose(1, 2), atol=1e-6), rounds
    distances = transport_distance(words, regions, valid_words, valid_regions)
    assert torch.allclose(distances, golden["distance"], atol=1e-6)
    distances.sum().backward()
    assert torch.allclose(words.grad, golden["grad_text"], atol=1e-6)
    assert torch.allclose(regions.grad, golden["grad_image"], atol=1e-6)


def test_distance_of_a_permutation_is_zero():
    words = torch.eye(4, dtype=torch.float64)[None] * torch.tensor([1.0, 2.0, 3.0, 4.0])[:, None]
    valid = torch.ones(1, 4, dtype=torch.bool)
    assert transport_distance(words, words.flip(1), valid, valid).item() == pytest.approx(0, abs=1e-12)


def test_distance_of_one_word_is_mean_cost_and_of_no_regions_zero():
    words, regions, valid_words, valid_regions = padded_case()
    valid_words[2], valid_regions[2] = torch.arange(6) < 1, torch.arange(9) < 5
    valid_regions[1] = False
    words.requires_grad_()
    distances = transport_distance(words, regions, valid_words, valid_regions)
    assert distances[2].item() == pytest.approx(cosine_costs(words, regions)[2, 0, :5].mean().item(), abs=1e-12)
    assert distances[1].item() == 0
    distances.sum().backward()
    assert words.grad.isfinite().all()
