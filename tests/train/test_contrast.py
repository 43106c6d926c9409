"""A loss over all rows of the batch, from the command line: it learns, on other layouts and cut off in the middle."""

from __future__ import annotations

import math

import pytest

from megaptm.inference.loaded_model import load_model
from megaptm.track import read_metrics
from tests.drills.program import arguments, losses, resumed_at
from tests.forked import megaptm

ROWS = 16
TOWERS = (
    *("model.family=tests.models.towers:TOWERS", "model.size=small", "data.sequence=32", "layout.microbatch=2"),
    *(f"train.batch={ROWS}", "train.steps=100", "train.validate_batches=1"),
    *(f"model.{name}=null" for name in ("layers", "width", "heads", "ffn")),
)


@pytest.fixture(scope="module")
def train(real_corpus, tmp_path_factory):
    place = tmp_path_factory.mktemp("contrast")

    def run(name, *more, code=0):
        megaptm("train", *arguments("bert", place / name, real_corpus("wordpiece"), *TOWERS, *more), code=code)
        return place / name

    return run


@pytest.fixture(scope="module")
def whole(train):
    return train("whole")


def test_halves_of_texts_find_each_other(whole):
    seen = [loss for _, (loss,) in sorted(losses(whole).items())]
    assert seen[0] == pytest.approx(math.log(ROWS), rel=0.2)
    assert sum(seen[-20:]) / 20 < 0.95 * math.log(ROWS)


@pytest.mark.drill
def test_other_layouts_and_a_stop_in_the_middle_make_the_same_run(train, whole):
    train("moved", "layout.data=2", "layout.microbatch=4", "train.stop_at=20", code=75)
    moved = train("moved", "layout.pipeline=2", "layout.tensor=2", "layout.microbatch=8")
    assert resumed_at(moved) == [20]
    # Ranks round otherwise; once it learns in earnest, such differences grow with each step.
    early, expected = ({step: loss for step, loss in losses(run).items() if step <= 60} for run in (moved, whole))
    assert early == {step: pytest.approx(loss, rel=1e-2) for step, loss in expected.items()}
    one, other = ([r["validation/loss"] for r in read_metrics(run) if "validation/loss" in r] for run in (whole, moved))
    assert other == pytest.approx(one, rel=5e-2)


def test_it_is_measured_among_as_many_rows_as_it_was_trained_with(whole):
    found = load_model(whole).evaluate(rows=ROWS).losses["pairs"]
    assert (found.asked, found.uniform) == (ROWS, math.log(ROWS))
    assert found.model < found.uniform
