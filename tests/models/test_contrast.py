"""A loss that compares rows is the paper's formula, written out."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from megaptm.batch import IGNORED
from megaptm.models import build_model, fill
from megaptm.spec import ModelSpec
from tests.models.pairs import WIDTH
from tests.models.towers import TOWERS

ROWS, LENGTH = 6, 10


def written_out(features: Tensor, asked: list[int]) -> Tensor:
    """The sum over rows of -log(e^s(x, y+) / (e^s(x, y+) + sum of e^s(x, y-))), each of a pair for x in turn, halved:
    InfoNCE (arXiv:1807.03748, equation 4) both ways. Only what is asked is told from one another."""
    left, right, scale = features[:, :WIDTH], features[:, WIDTH:-1], features[:, -1].mean()
    total = torch.zeros(())
    for one, other in ((left, right), (right, left)):
        for x in asked:
            weights = {y: torch.exp(scale * (one[x] * other[y]).sum()) for y in asked}
            total = total - torch.log(weights[x] / (weights[x] + sum(weights[y] for y in asked if y != x))) / 2
    return total


def test_it_is_the_formula_in_value_and_in_every_gradient() -> None:
    spec = ModelSpec(family=TOWERS, size=TOWERS.sizes["small"], vocabulary=50, context=LENGTH, dropout=0.0)
    model = build_model(spec).eval()
    fill(model, seed=3)
    draw = torch.Generator().manual_seed(4)
    texts = {f"{side}tokens": torch.randint(0, 50, (ROWS, LENGTH), generator=draw) for side in ("", "right_")}
    asked = [0, 2, 3, 5]
    answers = torch.full((ROWS,), IGNORED)
    answers[asked] = 0

    loss, count = model({**texts, "pairs": answers}).losses["pairs"]
    assert count == len(asked)
    found = torch.autograd.grad(loss, [*model.parameters()], allow_unused=True)
    expected = written_out(model.logits(texts)["pairs"], asked)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    wanted = torch.autograd.grad(expected, [*model.parameters()], allow_unused=True)
    for (name, _), ours, theirs in zip(model.named_parameters(), found, wanted, strict=True):
        assert (ours is None) == (theirs is None), name
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6, msg=name)

    alike = {name: field[:1].expand(ROWS, -1) for name, field in texts.items()}
    loss, count = model({**alike, "pairs": torch.zeros(ROWS, dtype=torch.int64)}).losses["pairs"]
    assert (loss / count).item() == pytest.approx(math.log(ROWS))  # who cannot tell them apart guesses
