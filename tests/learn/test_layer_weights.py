"""Effect of the penalty on ELMo's layer weights (arXiv:1802.05365, sections 3.2 and 5.1): with a large penalty a task
uses the mean of the layers, with a small one it selects among them.

Weights of the word vectors and of the two layers on 2026-11-26 at 487ee14f, after 150 steps of 32 texts of 20 words of
source code. The task predicts the punctuation after each word.

| penalty | seed 1 | seed 2 |
|---|---|---|
| 0.001 | 0.20, 0.63, 0.17 | 0.14, 0.36, 0.50 |
| 0.01 | 0.23, 0.50, 0.26 | 0.19, 0.42, 0.38 |
| 0.1 | 0.30, 0.36, 0.34 | 0.30, 0.36, 0.34 |
| 1 | within 0.004 of a third each | within 0.004 of a third each |
"""

# L layers, B texts, S words of a text, D width of a layer

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

from megaptm.families.elmo.every_layer import ScalarMix, all_layer_outputs
from megaptm.families.elmo.spelling import character_ids
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.spec import ModelSpec, Size
from tests.models.recurrent import NUM_CHARACTERS, characters, elmo_table

STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0)
SEEDS = (1, 2)
VOCABULARY, LENGTH, TEXTS, STEPS = 500, 20, 32, 150
FOLLOWING = ("(", ")", ".", ",", ":", "=")
"""Labels of the task. Words that are followed by another word share one more label."""


@dataclass(frozen=True)
class Words:
    """Words of the source code of some modules. Rare words are unknown."""

    ids: Tensor
    """int64 [words]"""
    characters: Tensor
    """int16 [VOCABULARY, CHARACTERS]"""
    labels: Tensor
    """int64 [VOCABULARY]: index in `FOLLOWING` of each vocabulary word, or `len(FOLLOWING)`."""

    def sample_texts(self, seed: int) -> Tensor:
        """Return int64 [TEXTS, LENGTH + 1] ids of random excerpts."""
        generator = torch.Generator().manual_seed(seed)
        starts = torch.randint(len(self.ids) - LENGTH, (TEXTS, 1), generator=generator)
        return self.ids[starts + torch.arange(LENGTH + 1)]


def read_words() -> Words:
    source = "\n".join(inspect.getsource(module) for module in (argparse, ast, typing))
    words = re.findall(r"\w+|[^\w\s]", source)
    vocabulary = ["<unk>", *(word for word, _ in Counter(words).most_common(VOCABULARY - 1))]
    ids = {word: index for index, word in enumerate(vocabulary)}
    labels = [FOLLOWING.index(word) if word in FOLLOWING else len(FOLLOWING) for word in vocabulary]
    return Words(
        torch.tensor([ids.get(word, 0) for word in words]),
        torch.from_numpy(character_ids(vocabulary))[:, :NUM_CHARACTERS],
        torch.tensor(labels),
    )


def train_elmo(words: Words, seed: int) -> tuple[Tensor, Tensor]:
    """Train ELMo. Return its layers [L, B, S, D] for new texts, and int64 [B, S] the labels of their words."""
    size = Size(layers=2, width=32, heads=1, ffn=64, memory=1, inputs=characters(highway=1))
    model = Model(ModelSpec(family=elmo_table(), size=size, vocabulary=VOCABULARY, context=LENGTH, dropout=0.0))
    init_weights(model, seed=seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(STEPS):
        texts, batch = words.sample_texts(1000 * seed + step), {}
        for prefix, ids in (("", texts), ("backwards_", texts.flip(1))):
            fields = {"tokens": ids[:, :-1], "characters": words.characters[ids[:, :-1]], "labels": ids[:, 1:]}
            batch |= {f"{prefix}{name}": field for name, field in fields.items()}
        model.begin_step(seed=seed, step=step)
        loss, count = model(batch).losses["bidirectional-lm"]
        optimizer.zero_grad()
        (loss / count).backward()
        optimizer.step()
    texts = words.sample_texts(seed)
    with torch.no_grad():
        layers = all_layer_outputs(model.eval(), words.characters[texts[:, :-1]], torch.full((TEXTS,), LENGTH))
    return layers, words.labels[texts[:, 1:]]


def train_task(layers: Tensor, labels: Tensor, strength: float) -> tuple[Tensor, float]:
    """Return the task's weights of the layers [L], and its loss without the penalty."""
    torch.manual_seed(0)
    mix, task = ScalarMix(len(layers), norm=True), torch.nn.Linear(layers.shape[-1], len(FOLLOWING) + 1)
    optimizer = torch.optim.Adam([*mix.parameters(), *task.parameters()], lr=0.05)
    valid = torch.ones(labels.shape, dtype=torch.bool)
    for _ in range(100):
        loss = F.cross_entropy(task(mix(layers, valid)).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        (loss + mix.penalty(strength)).backward()
        optimizer.step()
    return mix.weights.detach().softmax(0), loss.item()


@pytest.mark.drill
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", SEEDS)
def test_smaller_penalty_gives_more_different_layer_weights(seed: int) -> None:
    layers, labels = train_elmo(read_words(), seed)
    variances = []
    for strength in STRENGTHS:
        weights, loss = train_task(layers, labels, strength)
        print(f"seed {seed}, penalty {strength}: {[round(weight, 3) for weight in weights.tolist()]}, {loss:.3f} nats")
        variances.append(float(weights.var()))
    assert variances == sorted(variances, reverse=True)
    assert variances[0] > 20 * variances[-1]
