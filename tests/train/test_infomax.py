"""Run with masked words and n-grams as tasks: resume and other layouts."""

from __future__ import annotations

import pytest

from megaptm.track import read_metrics
from tests.drills.program import arguments, losses, resumed_at
from tests.forked import megaptm

SETTINGS = (
    "objective={words: {task: masked-lm, share: 0.5}, ngrams: {task: infomax, share: 0.5, weight: {0: 0.5, 10: 1.0}}}",
    *("model.context=64", "data.sequence=64", "train.batch=32", "layout.microbatch=8"),
    "train.steps=16",
)


@pytest.fixture(scope="module")
def train(real_corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("infomax")

    def run(name, *more, code=0):
        megaptm("train", *arguments("bert", folder / name, real_corpus("wordpiece"), *SETTINGS, *more), code=code)
        return folder / name

    return run


@pytest.fixture(scope="module")
def uninterrupted(train):
    return train("whole")


def test_loss_uses_the_weights_of_its_step(uninterrupted):
    records = [record for record in read_metrics(uninterrupted) if "loss/infomax" in record]
    assert [record["step"] for record in records] == [*range(1, 17)]
    for record in records:
        weight = 0.5 if record["step"] <= 10 else 1.0
        assert record["loss"] == pytest.approx(record["loss/mlm"] + weight * record["loss/infomax"])


def test_infomax_resume_is_bit_identical(train, uninterrupted):
    train("cut", "train.stop_at=7", code=75)
    cut = train("cut")
    assert resumed_at(cut) == [7]
    assert losses(cut) == losses(uninterrupted)


def test_infomax_run_resumes_on_another_layout(train, uninterrupted):
    train("moved", "layout.data=2", "train.stop_at=4", code=75)
    moved = train("moved", "layout.pipeline=2", "train.stop_at=9", code=75)
    assert resumed_at(moved) == [4]
    assert losses(moved) == {
        step: pytest.approx(loss, rel=1e-4) for step, loss in losses(uninterrupted).items() if step <= 9
    }
