"""Run with a composed objective: shares and weights of tasks that change during training."""

import math

import pytest

from megaptm.inference import evaluate as evaluation
from megaptm.inference.loaded_model import load_model
from megaptm.resilience.events import read_events
from megaptm.track import read_metrics
from tests.drills.program import arguments, losses, resumed_at
from tests.forked import megaptm

OBJECTIVE = (
    "objective={few: {task: masked-lm, share: {0: 1.0, 3: 0.5}, weight: {0: 1.0, 5: 0.5}}, "
    "many: {task: masked-lm, rate: 0.3, share: {0: 0.0, 3: 0.5}, weight: {0: 1.0, 5: 0.5}}, "
    "sentence-order: {weight: 2}}"
)


@pytest.fixture(scope="module")
def train(real_corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("composed")

    def train(name, *more, code=0):
        words = arguments("bert", folder / name, real_corpus("wordpiece"), OBJECTIVE, "train.steps=8", *more)
        megaptm("train", *words, code=code)
        return folder / name

    return train


@pytest.fixture(scope="module")
def uninterrupted(train):
    return train("whole")


def test_loss_uses_the_weights_of_its_step(uninterrupted):
    records = [record for record in read_metrics(uninterrupted) if "loss/mlm" in record]
    assert [record["step"] for record in records] == [*range(1, 9)]
    for record in records:
        weight = 1.0 if record["step"] <= 5 else 0.5
        assert record["loss"] == pytest.approx(weight * record["loss/mlm"] + 2 * record["loss/sentence-order"])


def test_changes_of_shares_and_weights_are_reported(uninterrupted):
    events = [event for event in read_events(uninterrupted) if event["kind"] == "weights"]
    assert [(event["step"], event["shares"], event["weights"]) for event in events] == [
        (4, {"few": 0.5, "many": 0.5}, {}),
        (6, {}, {"mlm": 0.5}),
    ]
    records = [record for record in read_metrics(uninterrupted) if "loss/mlm" in record]
    assert [record["loss_weight/mlm"] for record in records] == [1.0] * 5 + [0.5] * 3
    assert {record["loss_weight/sentence-order"] for record in records} == {2.0}


def test_weights_of_later_steps_may_change_on_resume(train, uninterrupted):
    train("turned", "train.stop_at=4", code=75)
    changed = train("turned", OBJECTIVE.replace("5: 0.5", "6: 0.25"))
    before, after = losses(uninterrupted), losses(changed)
    assert [after[step] == pytest.approx(before[step], rel=1e-6) for step in range(1, 9)] == [True] * 5 + [False] * 3
    events = [event["kind"] for event in read_events(changed) if event["kind"] in ("objective", "weights")]
    assert events == ["weights", "objective", "weights"]


def test_change_after_the_last_step_is_a_warning(real_corpus, tmp_path):
    output = megaptm("train", *arguments("bert", tmp_path, real_corpus("wordpiece"), OBJECTIVE, "train.steps=4"))
    assert "warning: objective: the weight of mlm changes at step 5, which the run does not reach" in output


def test_composed_run_resumes_on_another_layout(train, uninterrupted):
    train("moved", "train.stop_at=4", code=75)
    moved = train("moved", "layout.tensor=2")
    assert resumed_at(moved) == [4]
    assert losses(moved) == {step: pytest.approx(loss, rel=1e-5) for step, loss in losses(uninterrupted).items()}


def test_composed_run_is_evaluated(uninterrupted, monkeypatch):
    monkeypatch.setattr(evaluation, "COUNTED_SAMPLES", 20)
    evaluated = load_model(uninterrupted).evaluate(rows=8)
    assert {*evaluated.losses} == {"mlm", "sentence-order"}
    assert evaluated.losses["sentence-order"].uniform == pytest.approx(math.log(2))
    assert evaluated.total_loss("model") == pytest.approx(
        0.5 * evaluated.losses["mlm"].model + 2 * evaluated.losses["sentence-order"].model
    )
