"""The contrastive loss of a custom head equals the formula of the paper."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from megaptm.batch import IGNORED
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.spec import ModelSpec
from tests.models.pairs import WIDTH
from tests.models.towers import TOWERS

BATCH, LENGTH = 6, 10


def info_nce_of_pairs(features: Tensor, labeled: list[int]) -> Tensor:
    """Return InfoNCE (arXiv:1807.03748, equation 4) in both directions, halved.

    The sum over samples x of -log(e^s(x, y+) / (e^s(x, y+) + sum of e^s(x, y-))). Only samples with a label take
    part.
    """
    left_BW, right_BW, scale = features[:, :WIDTH], features[:, WIDTH:-1], features[:, -1].mean()
    total = torch.zeros(())
    for queries, keys in ((left_BW, right_BW), (right_BW, left_BW)):
        for x in labeled:
            weights = {y: torch.exp(scale * (queries[x] * keys[y]).sum()) for y in labeled}
            total = total - torch.log(weights[x] / (weights[x] + sum(weights[y] for y in labeled if y != x))) / 2
    return total


def test_contrast_loss_equals_its_formula() -> None:
    spec = ModelSpec(family=TOWERS, size=TOWERS.sizes["small"], vocabulary=50, context=LENGTH, dropout=0.0)
    model = Model(spec).eval()
    init_weights(model, seed=3)
    generator = torch.Generator().manual_seed(4)
    texts = {f"{side}tokens": torch.randint(0, 50, (BATCH, LENGTH), generator=generator) for side in ("", "right_")}
    labeled = [0, 2, 3, 5]
    labels = torch.full((BATCH,), IGNORED)
    labels[labeled] = 0

    loss, count = model({**texts, "pairs": labels}).losses["pairs"]
    assert count == len(labeled)
    gradients = torch.autograd.grad(loss, [*model.parameters()], allow_unused=True)
    expected = info_nce_of_pairs(model.logits(texts)["pairs"], labeled)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    expected_gradients = torch.autograd.grad(expected, [*model.parameters()], allow_unused=True)
    for (name, _), gradient, expected_gradient in zip(
        model.named_parameters(), gradients, expected_gradients, strict=True
    ):
        assert (gradient is None) == (expected_gradient is None), name
        if gradient is not None:
            torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-6, msg=name)

    equal_texts = {name: field[:1].expand(BATCH, -1) for name, field in texts.items()}
    loss, count = model({**equal_texts, "pairs": torch.zeros(BATCH, dtype=torch.int64)}).losses["pairs"]
    assert (loss / count).item() == pytest.approx(math.log(BATCH))  # equal texts cannot be told apart
