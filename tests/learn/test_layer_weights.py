"""What keeps the weights of ELMo's layers together, and what does not (arXiv:1802.05365, 3.2 and 5.1): with a large
penalty a task gets the mean of the layers, with a small one it chooses among them.

Seen on 2026-11-26 at 487ee14f, after 150 steps of 32 texts of 20 words of source code, of which a task then says what
follows each word: with a penalty of 0.001 it takes 0.20, 0.63 and 0.17 of the words and the two layers (seed 1), or
0.14, 0.36 and 0.50 (seed 2); with 0.01 0.23, 0.50, 0.26 and 0.19, 0.42, 0.38; with 0.1 0.30, 0.36, 0.34 and 0.30, 0.36,
0.34; with 1 a third of each, but for 0.004.
"""

# L layers, B texts, S words of a text, D numbers of a layer, N numbers asked for

from __future__ import annotations

import argparse
import ast
import inspect
import re
import typing
from collections import Counter
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from megaptm.models import build_model, fill
from megaptm.models.every_layer import ScalarMix, every_layer
from megaptm.objectives.spelling import character_ids
from megaptm.spec import ModelSpec, Size
from tests.models.recurrent import FILTERS, NUM_CHARACTERS, elmo_table

STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0)
SEEDS = (1, 2)
VOCABULARY, LENGTH, TEXTS, STEPS = 500, 20, 32, 150
FOLLOWING = ("(", ")", ".", ",", ":", "=")
"""What a word is followed by, or by none of them."""


@dataclass(frozen=True)
class Words:
    """The source of some modules, word after word; of those beyond the most frequent it knows that there are some."""

    ids: Tensor
    """int64 [number of words]"""
    characters: Tensor
    """int16 [VOCABULARY, CHARACTERS]"""
    labels: Tensor
    """int64 [VOCABULARY]: which of `FOLLOWING` a word is, or how many these are."""

    def texts(self, seed: int) -> Tensor:
        """int64 [TEXTS, LENGTH + 1], from anywhere."""
        generator = torch.Generator().manual_seed(seed)
        starts = torch.randint(len(self.ids) - LENGTH, (TEXTS, 1), generator=generator)
        return self.ids[starts + torch.arange(LENGTH + 1)]


def read() -> Words:
    source = "\n".join(inspect.getsource(module) for module in (argparse, ast, typing))
    words = re.findall(r"\w+|[^\w\s]", source)
    known = ["<unk>", *(word for word, _ in Counter(words).most_common(VOCABULARY - 1))]
    numbers = {word: number for number, word in enumerate(known)}
    labels = [FOLLOWING.index(word) if word in FOLLOWING else len(FOLLOWING) for word in known]
    ids = torch.tensor([numbers.get(word, 0) for word in words])
    return Words(ids, torch.from_numpy(character_ids(known))[:, :NUM_CHARACTERS], torch.tensor(labels))


def layers_of(words: Words, seed: int) -> tuple[Tensor, Tensor]:
    """[L, B, S, D] and int64 [B, S]: what ELMo says of texts, having read others, and what follows each word."""
    size = Size(layers=2, width=32, heads=1, ffn=64, memory=1, filters=FILTERS, highway=1, character_width=6)
    model = build_model(ModelSpec(family=elmo_table(), size=size, vocabulary=VOCABULARY, context=LENGTH, dropout=0.0))
    fill(model, seed=seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(STEPS):
        texts, batch = words.texts(1000 * seed + step), {}
        for prefix, rows in (("", texts), ("backwards_", texts.flip(1))):
            fields = {"tokens": rows[:, :-1], "characters": words.characters[rows[:, :-1]], "labels": rows[:, 1:]}
            batch |= {f"{prefix}{name}": field for name, field in fields.items()}
        model.begin_step(seed=seed, step=step)
        loss, count = model(batch).losses["bidirectional-lm"]
        optimizer.zero_grad()
        (loss / count).backward()
        optimizer.step()
    texts = words.texts(seed)
    with torch.no_grad():
        said = every_layer(model.eval(), words.characters[texts[:, :-1]], torch.full((TEXTS,), LENGTH))
    return said, words.labels[texts[:, 1:]]


def shares(layers: Tensor, labels: Tensor, strength: float) -> tuple[Tensor, float]:
    """[L]: what a task takes of each layer, and its loss without the penalty."""
    torch.manual_seed(0)
    mix, task = ScalarMix(len(layers), norm=True), torch.nn.Linear(layers.shape[-1], len(FOLLOWING) + 1)
    optimizer = torch.optim.Adam([*mix.parameters(), *task.parameters()], lr=0.05)
    here = torch.ones(labels.shape, dtype=torch.bool)
    for _ in range(100):
        loss = F.cross_entropy(task(mix(layers, here)).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        (loss + mix.penalty(strength)).backward()
        optimizer.step()
    return mix.weights.detach().softmax(0), loss.item()


@pytest.mark.drill
@pytest.mark.timeout(1800)
def test_the_smaller_the_penalty_the_more_layers_differ() -> None:
    words = read()
    for seed in SEEDS:
        layers, labels = layers_of(words, seed)
        found = [shares(layers, labels, strength) for strength in STRENGTHS]
        for strength, (taken, loss) in zip(STRENGTHS, found, strict=True):
            print(f"seed {seed}, penalty {strength}: {[round(one, 3) for one in taken.tolist()]}, {loss:.3f} nats")
        variances = [float(taken.var()) for taken, _ in found]
        assert variances == sorted(variances, reverse=True)
        assert variances[0] > 20 * variances[-1]
