"""Run with a contrastive loss over the global batch."""

from __future__ import annotations

import math

import pytest

from megaptm.inference.loaded_model import load_model
from megaptm.track import read_metrics
from tests.drills.program import arguments, losses, resumed_at
from tests.forked import megaptm

ROWS = 16
TOWERS = (
    *("model.family=tests.models.towers:TOWERS", "model.size=small", "data.sequence=32", "layout.microbatch=4"),
    *(f"train.batch={ROWS}", "train.steps=100", "train.validate_batches=1"),
    *(f"model.{name}=null" for name in ("layers", "width", "heads", "ffn")),
)


@pytest.fixture(scope="module")
def train(real_corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("contrast")

    def run(name, *more, code=0):
        megaptm("train", *arguments("bert", folder / name, real_corpus("wordpiece"), *TOWERS, *more), code=code)
        return folder / name

    return run


@pytest.fixture(scope="module")
def uninterrupted(train):
    return train("whole")


def test_contrastive_loss_falls(uninterrupted):
    loss_per_step = [loss for _, (loss,) in sorted(losses(uninterrupted).items())]
    assert loss_per_step[0] == pytest.approx(math.log(ROWS), rel=0.2)
    assert sum(loss_per_step[-20:]) / 20 < 0.95 * math.log(ROWS)


@pytest.mark.drill
def test_contrastive_run_resumes_on_another_layout(train, uninterrupted):
    train("moved", "layout.data=2", "layout.microbatch=4", "train.stop_at=20", code=75)
    moved = train("moved", "layout.pipeline=2", "layout.tensor=2", "layout.microbatch=8")
    assert resumed_at(moved) == [20]
    # Ranks round differently, and such differences grow with each step once the loss falls.
    early, expected = (
        {step: loss for step, loss in losses(run).items() if step <= 60} for run in (moved, uninterrupted)
    )
    assert early == {step: pytest.approx(loss, rel=1e-2) for step, loss in expected.items()}
    expected_validation, validation = (
        [r["validation/loss"] for r in read_metrics(run) if "validation/loss" in r] for run in (uninterrupted, moved)
    )
    assert validation == pytest.approx(expected_validation, rel=5e-2)


def test_contrastive_evaluation_compares_a_training_batch(uninterrupted):
    evaluated = load_model(uninterrupted).evaluate(rows=8 * ROWS).losses["pairs"]
    assert (evaluated.num_labels, evaluated.uniform) == (8 * ROWS, math.log(ROWS))
    assert evaluated.model < evaluated.uniform
