"""T5 v1.1 learns text-to-text tasks, which the first token of a text names."""

from dataclasses import replace

import numpy as np
import torch

from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.objectives import OBJECTIVES
from megaptm.objectives.objective import DocumentSlice, SampleContext
from tests.data.corpora import SPECIALS
from tests.models.tiny import tiny_spec
from tests.objectives.samples import SPECIAL

REPEAT, TRANSLATE = SPECIALS, SPECIALS + 1
WORDS = 8
FIRST = SPECIALS + 2
"""First word id; the translation of each word is `WORDS` ids later."""


def example(rng: np.random.Generator) -> DocumentSlice:
    task, word = int(rng.integers(2)), FIRST + int(rng.integers(WORDS))
    tokens = [(REPEAT, TRANSLATE)[task], word, word + task * WORDS]
    return DocumentSlice(np.array(tokens), 2, {"parts": np.array([0, 2])})


def batch(seed: int, rows: int = 32) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(seed)
    task = OBJECTIVES["text-to-text"]
    made = [task.make_sample([example(rng), example(rng)], SampleContext(SPECIAL, rng, 6, True)) for _ in range(rows)]
    return {field: torch.from_numpy(np.stack([sample[field] for sample in made])) for field in made[0]}


def test_model_learns_two_text_tasks() -> None:
    model = Model(replace(tiny_spec("t5-v1.1", layers=1), vocabulary=FIRST + 2 * WORDS))
    init_weights(model, seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(60):
        loss, count = model(batch(step)).losses["lm"]
        optimizer.zero_grad()
        (loss / count).backward()
        optimizer.step()
        losses.append((loss / count).item())
    # Half of the labels are end tokens. Without reading the task, each word is one of two: 0.35 nats on average.
    assert losses[0] > 2
    assert np.mean(losses[-20:]) < 0.1
