"""Losses of 25 steps equal those of the Hugging Face model with torch's AdamW, from the same weights on the same
batches."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils import clip_grad_norm_

from megaptm.config import Layout
from megaptm.families import CATALOGUE
from megaptm.spec import change
from tests.engines import filled_engine
from tests.layouts.cases import ADAM
from tests.models.tiny import tiny_batch, tiny_model, tiny_spec
from tests.parity.reference import convert_inputs, make_reference, scatter_labels
from tests.ranks import run_ranks

STEPS, ROWS, NUM_BATCHES = 25, 3, 5
LAYERS = {"modernbert": 4, "ettin-decoder": 4, "t5gemma": 1}
"""Layers of families whose first two are not of both kinds. More layers amplify rounding errors."""
OPTIMIZER = ADAM.model_copy(update={"lr": 1e-3})
"""Optimizer whose steps are small enough that they do not amplify rounding errors."""


def batch_at(family: str, step: int) -> dict[str, torch.Tensor]:
    """Return the batch of a step: one of a few, so that the loss falls."""
    return tiny_batch(family, rows=ROWS, seed=step % NUM_BATCHES)


def train_engine(family: str) -> list[float]:
    """Return the losses of megaptm's engine."""
    spec = tiny_spec(family, layers=LAYERS.get(family, 2))
    spec = replace(spec, family=change(spec.family, loss={"z_loss": 0.0}))  # the reference has none
    engine = filled_engine(
        *(spec, Layout(microbatch=ROWS), OPTIMIZER),
        losses={CATALOGUE[family].heads[0]: 1.0},
        seed=7,
        precision="fp32",
    )
    results = [engine.train_step([batch_at(family, step)], step=step, lr=OPTIMIZER.lr) for step in range(STEPS)]
    return [result.loss for result in results]


def train_reference(family: str) -> list[float]:
    """Return the losses of the Hugging Face model."""
    reference = make_reference(tiny_model(family, layers=LAYERS.get(family, 2), noise=0.0))
    matrices = [weight for weight in reference.parameters() if weight.dim() > 1]
    vectors = [weight for weight in reference.parameters() if weight.dim() == 1]
    groups = [{"params": matrices, "weight_decay": OPTIMIZER.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=OPTIMIZER.lr, betas=OPTIMIZER.betas, eps=OPTIMIZER.eps)
    losses = []
    for step in range(STEPS):
        batch = batch_at(family, step)
        logits = reference(**convert_inputs(family, batch)).logits
        loss = F.cross_entropy(logits.flatten(0, 1), scatter_labels(batch).flatten())
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(reference.parameters(), OPTIMIZER.clip)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    "family",
    [
        "modernbert",
        "eurobert",
        "nomic-bert",
        "ettin-decoder",
        "llama",
        "qwen3",
        "olmo2",
        "mistral",
        "gemma2",
        "t5gemma",
    ],
)
def test_losses_equal_adamw_on_the_hugging_face_model(family: str) -> None:
    [losses] = run_ranks(1, train_engine, family)
    expected = train_reference(family)
    assert losses == pytest.approx(expected, rel=1e-6)
    assert losses[-1] < losses[0] - 0.2
