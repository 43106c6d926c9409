"""The Transformer: sinusoidal positions, and training on a synthetic translation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from megaptm.errors import UserError
from megaptm.families import CATALOGUE
from megaptm.layers.positions import sinusoid
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.objectives import OBJECTIVES, SpecialTokens
from megaptm.objectives.objective import DocumentSlice, SampleContext
from megaptm.spec import ModelSpec, Size, change

SPECIAL = SpecialTokens(size=20, pad=0, end=1, specials=frozenset({0, 1}))


def test_sinusoidal_positions_alternate() -> None:
    table = sinusoid(torch.arange(700)[:, None], width=8)[:, 0]
    for position in (0, 1, 2, 699):
        for feature in range(8):
            angle = position / 10_000 ** (2 * (feature // 2) / 8)
            assert table[position, feature].item() == pytest.approx((math.sin, math.cos)[feature % 2](angle), abs=1e-12)


def test_odd_width_is_refused() -> None:
    size = Size(layers=1, width=9, heads=1, ffn=8)
    spec = ModelSpec(family=CATALOGUE["transformer"], size=size, vocabulary=20, context=8, dropout=0.0)
    with pytest.raises(UserError, match="need an even width, not 9"):
        Model(spec)
    with pytest.raises(UserError, match=r"embedding.scale is 'cube'; use one of none, sqrt-width"):
        Model(
            ModelSpec(
                family=change(spec.family, embedding={"scale": "cube"}),
                size=change(size, width=8),
                vocabulary=20,
                context=8,
                dropout=0.0,
            )
        )


def pairs(rng: np.random.Generator, count: int) -> list[DocumentSlice]:
    """Return documents of three to five letters and their reversal."""
    documents = []
    for length in rng.integers(3, 6, count):
        word = rng.integers(2, 20, length)
        documents.append(
            DocumentSlice(np.concatenate((word, word[::-1])), 2, {"parts": np.array([0, length], np.int32)})
        )
    return documents


def batch(rng: np.random.Generator) -> dict[str, torch.Tensor]:
    rows = [
        OBJECTIVES["translation"].make_sample(pairs(rng, 3), SampleContext(SPECIAL, rng, 24, True)) for _ in range(24)
    ]
    return {field: torch.from_numpy(np.stack([row[field] for row in rows])) for field in rows[0]}


@pytest.mark.usefixtures("one_thread")
def test_model_learns_to_reverse_words() -> None:
    size = Size(layers=1, width=64, heads=4, ffn=128)
    spec = ModelSpec(family=CATALOGUE["transformer"], size=size, vocabulary=20, context=24, dropout=0.0)
    model, rng = Model(spec), np.random.default_rng(0)
    init_weights(model, seed=1)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    for step in range(1, 251):
        for group in optimizer.param_groups:
            group["lr"] = 4e-3 * min(step / 50, (50 / step) ** 0.5)
        loss, count = model(batch(rng)).losses["lm"]
        optimizer.zero_grad()
        (loss / count).backward()
        optimizer.step()
    model.eval()
    held_out = batch(rng)
    is_label = held_out["labels"] != -100
    with torch.no_grad():
        predictions = model.logits(held_out)["lm"].argmax(-1)
    assert (predictions == held_out["labels"])[is_label].float().mean() >= 0.99
