"""Transformer-XL: how far its memory reaches, that segments are one long text, and that a longer memory helps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from megaptm.families import CATALOGUE
from megaptm.models import Model, build_model, fill
from megaptm.spec import ModelSpec, Size, change

VOCABULARY, LENGTH = 50, 4


def model_of(memory: int, *, layers: int = 3, width: int = 32, init: str = "fan-in") -> Model:
    """With weights large enough that what is far weighs."""
    family = change(CATALOGUE["transformer-xl-bytes"], init=init)
    size = Size(layers=layers, width=width, heads=4, ffn=64, memory=memory)
    model = build_model(ModelSpec(family=family, size=size, vocabulary=VOCABULARY, context=LENGTH, dropout=0.0))
    fill(model, seed=5)
    return model.eval()


def says(model: Model, tokens: Tensor, *, memory: int | None = None) -> Tensor:
    """Logits [B, T, V], of a text that is read in segments."""
    pasts, said = model.empty_pasts(len(tokens), places=memory), []
    with torch.no_grad():
        for segment in tokens.split(LENGTH, dim=1):
            said.append(model.logits({"tokens": segment}, pasts=pasts)["lm"])
            pasts = {stack: past.moved_on() for stack, past in pasts.items()}
    return torch.cat(said, 1)


def text(length: int, rows: int = 2) -> Tensor:
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(1))


def test_segments_one_after_the_other_are_one_long_segment() -> None:
    tokens = text(5 * LENGTH)
    model = model_of(memory=5 * LENGTH)
    with torch.no_grad():
        whole = model.logits({"tokens": tokens})["lm"]
    torch.testing.assert_close(says(model, tokens), whole, rtol=0, atol=2e-5)


def changed(tokens: Tensor) -> Tensor:
    """[T + 1, T]: a text as it is, and with another token at each of its places."""
    every = tokens.expand(tokens.shape[1] + 1, -1).clone()
    places = torch.arange(tokens.shape[1])
    every[places + 1, places] = (every[places + 1, places] + 1) % VOCABULARY
    return every


@pytest.mark.parametrize(("layers", "memory"), [(1, 4), (3, 4), (2, 8)])
def test_influence_reaches_as_many_places_back_as_layers_remember_together(layers: int, memory: int) -> None:
    """Of the first place of a segment, which sees `memory` places and itself in each layer (arXiv:1901.02860, 3.2),
    where memory is of whole segments; else what it sees in the layer below saw more than so many places."""
    first = 7 * LENGTH
    said = says(model_of(memory, layers=layers), changed(text(first + LENGTH, rows=1)))[:, first]
    moved = (said[1:] - said[:1]).abs().amax(-1) > 1e-6
    assert moved[: first + 1].tolist() == [place >= first - layers * memory for place in range(first + 1)]


def test_the_future_is_hidden_and_the_past_is_seen_across_segments() -> None:
    said = says(model_of(memory=8), changed(text(3 * LENGTH, rows=1)))
    moved = (said[1:] - said[:1]).abs().amax(-1) > 1e-6
    assert moved.equal(torch.ones(3 * LENGTH, 3 * LENGTH, dtype=torch.bool).triu())


def test_what_is_remembered_gets_no_gradient() -> None:
    tokens, model = text(2 * LENGTH), model_of(memory=8)
    pasts = model.empty_pasts(2)
    model({"tokens": tokens[:, :LENGTH], "labels": tokens[:, 1 : LENGTH + 1]}, pasts=pasts)
    pasts = {stack: past.moved_on() for stack, past in pasts.items()}
    assert all(not state.requires_grad for past in pasts.values() for state in past.states.values())


def test_a_row_that_begins_anew_remembers_nothing() -> None:
    tokens, model = text(2 * LENGTH), model_of(memory=8)
    pasts = model.empty_pasts(2)
    with torch.no_grad():
        model.logits({"tokens": tokens[:, :LENGTH]}, pasts=pasts)
        pasts = {stack: past.moved_on() for stack, past in pasts.items()}
        batch = {"tokens": tokens[:, LENGTH:], "reset_state": torch.tensor([1, 0])}
        said = model.logits(batch, pasts=pasts)["lm"]
        alone = model.logits({"tokens": tokens[:, LENGTH:]})["lm"]
    torch.testing.assert_close(said[0], alone[0], rtol=0, atol=1e-5)
    assert (said[1] - alone[1]).abs().max() > 1e-2


PERIOD = 11
"""Places between what is said and what it is said again after: more than a segment."""


SYMBOLS = 8


def copied(rows: int, length: int, seed: int) -> Tensor:
    """Random text that says everything again a period later."""
    generator = torch.Generator().manual_seed(seed)
    period = torch.randint(SYMBOLS, (rows, PERIOD), generator=generator)
    return period.repeat(1, -(-length // PERIOD))[:, :length]


def test_perplexity_falls_as_memory_grows() -> None:
    """What a segment of 4 cannot know it has from 11 places before: a memory of 12 knows, of 4 it does not."""
    segments = 5
    model = model_of(memory=12, layers=1, init="glorot").train()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    for step in range(120):
        tokens = copied(16, segments * LENGTH + 1, seed=100 + step)
        pasts = model.empty_pasts(16)
        optimizer.zero_grad()
        total = torch.zeros(())
        for at in range(0, segments * LENGTH, LENGTH):
            batch = {"tokens": tokens[:, at : at + LENGTH], "labels": tokens[:, at + 1 : at + LENGTH + 1]}
            loss, count = model(batch, pasts=pasts).losses["lm"]
            total = total + loss / count
            pasts = {stack: past.moved_on() for stack, past in pasts.items()}
        total.backward()
        optimizer.step()
    model.eval()
    tokens = copied(64, segments * LENGTH + 1, seed=1)
    found = []
    for memory in (0, 4, 8, 12):
        logits = says(model, tokens[:, :-1], memory=memory)[:, 3 * LENGTH :]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 3 * LENGTH + 1 :].flatten())
        found.append(float(loss.exp()))
    assert found[3] < found[2] < min(found[:2])
    assert found[3] < 4 < SYMBOLS - 1 < found[1]
