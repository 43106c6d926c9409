"""Transformer-XL: recurrence cache, segments, resets, and training."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from megaptm.families import CATALOGUE
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.spec import ModelSpec, Size, change

VOCABULARY, LENGTH = 50, 4


def build_tiny_model(memory: int, *, layers: int = 3, width: int = 32, init: str = "fan-in") -> Model:
    """Return a tiny model, with weights large enough that distant tokens change logits."""
    family = change(CATALOGUE["transformer-xl-bytes"], init={"rule": init})
    size = Size(layers=layers, width=width, heads=4, ffn=64, memory=memory)
    model = Model(ModelSpec(family=family, size=size, vocabulary=VOCABULARY, context=LENGTH, dropout=0.0))
    init_weights(model, seed=5)
    return model.eval()


def segment_logits(model: Model, tokens: Tensor, *, memory: int | None = None) -> Tensor:
    """Return the logits [B, T, V] of a text that is read in segments."""
    caches, logits = model.empty_caches(len(tokens), num_positions=memory), []
    with torch.no_grad():
        for segment in tokens.split(LENGTH, dim=1):
            logits.append(model.logits({"tokens": segment}, caches=caches)["lm"])
            caches = {stack: stack_cache.after_sequence() for stack, stack_cache in caches.items()}
    return torch.cat(logits, 1)


def text(length: int, rows: int = 2) -> Tensor:
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(1))


def test_segments_equal_one_long_segment() -> None:
    tokens = text(5 * LENGTH)
    model = build_tiny_model(memory=5 * LENGTH)
    with torch.no_grad():
        expected = model.logits({"tokens": tokens})["lm"]
    torch.testing.assert_close(segment_logits(model, tokens), expected, rtol=0, atol=2e-5)


def with_changed_tokens(tokens: Tensor) -> Tensor:
    """Return [T + 1, T]: the text, and T copies that differ from it in one token each."""
    variants = tokens.expand(tokens.shape[1] + 1, -1).clone()
    positions = torch.arange(tokens.shape[1])
    variants[positions + 1, positions] = (variants[positions + 1, positions] + 1) % VOCABULARY
    return variants


@pytest.mark.parametrize(("layers", "memory"), [(1, 4), (3, 4), (2, 8)])
def test_reach_is_layers_times_cache(layers: int, memory: int) -> None:
    """The first position of a segment attends to `memory` positions and itself in each layer, so logits depend on
    `layers * memory` earlier tokens (arXiv:1901.02860, section 3.2), if `memory` is a multiple of the segment
    length."""
    first = 7 * LENGTH
    logits = segment_logits(build_tiny_model(memory, layers=layers), with_changed_tokens(text(first + LENGTH, rows=1)))[
        :, first
    ]
    changed_logits = (logits[1:] - logits[:1]).abs().amax(-1) > 1e-6
    assert changed_logits[: first + 1].tolist() == [
        position >= first - layers * memory for position in range(first + 1)
    ]


def test_attention_is_causal_across_segments() -> None:
    logits = segment_logits(build_tiny_model(memory=8), with_changed_tokens(text(3 * LENGTH, rows=1)))
    changed_logits = (logits[1:] - logits[:1]).abs().amax(-1) > 1e-6
    assert changed_logits.equal(torch.ones(3 * LENGTH, 3 * LENGTH, dtype=torch.bool).triu())


def test_cached_states_have_no_gradient() -> None:
    tokens, model = text(2 * LENGTH), build_tiny_model(memory=8)
    caches = model.empty_caches(2)
    model({"tokens": tokens[:, :LENGTH], "labels": tokens[:, 1 : LENGTH + 1]}, caches=caches)
    caches = {stack: stack_cache.after_sequence() for stack, stack_cache in caches.items()}
    assert all(not state.requires_grad for stack_cache in caches.values() for state in stack_cache.states.values())


def test_reset_state_clears_the_cache() -> None:
    tokens, model = text(2 * LENGTH), build_tiny_model(memory=8)
    caches = model.empty_caches(2)
    with torch.no_grad():
        model.logits({"tokens": tokens[:, :LENGTH]}, caches=caches)
        caches = {stack: stack_cache.after_sequence() for stack, stack_cache in caches.items()}
        batch = {"tokens": tokens[:, LENGTH:], "reset_state": torch.tensor([1, 0])}
        logits = model.logits(batch, caches=caches)["lm"]
        without_cache = model.logits({"tokens": tokens[:, LENGTH:]})["lm"]
    torch.testing.assert_close(logits[0], without_cache[0], rtol=0, atol=1e-5)
    assert (logits[1] - without_cache[1]).abs().max() > 1e-2


PERIOD = 11
"""Number of tokens after which the text repeats; more than a segment."""


SYMBOLS = 8


def repeated_text(rows: int, length: int, seed: int) -> Tensor:
    """Return random texts that repeat after `PERIOD` tokens."""
    generator = torch.Generator().manual_seed(seed)
    period = torch.randint(SYMBOLS, (rows, PERIOD), generator=generator)
    return period.repeat(1, -(-length // PERIOD))[:, :length]


def test_perplexity_falls_with_cache_length() -> None:
    """A segment of 4 tokens cannot know the text 11 tokens before it: a cache of 12 positions can, one of 4 cannot."""
    segments = 5
    model = build_tiny_model(memory=12, layers=1, init="glorot").train()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    for step in range(120):
        tokens = repeated_text(16, segments * LENGTH + 1, seed=100 + step)
        caches = model.empty_caches(16)
        optimizer.zero_grad()
        total = torch.zeros(())
        for start in range(0, segments * LENGTH, LENGTH):
            batch = {"tokens": tokens[:, start : start + LENGTH], "labels": tokens[:, start + 1 : start + LENGTH + 1]}
            loss, count = model(batch, caches=caches).losses["lm"]
            total = total + loss / count
            caches = {stack: stack_cache.after_sequence() for stack, stack_cache in caches.items()}
        total.backward()
        optimizer.step()
    model.eval()
    tokens = repeated_text(64, segments * LENGTH + 1, seed=1)
    perplexities = []
    for memory in (0, 4, 8, 12):
        logits = segment_logits(model, tokens[:, :-1], memory=memory)[:, 3 * LENGTH :]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 3 * LENGTH + 1 :].flatten())
        perplexities.append(float(loss.exp()))
    assert perplexities[3] < perplexities[2] < min(perplexities[:2])
    assert perplexities[3] < 4 < SYMBOLS - 1 < perplexities[1]
