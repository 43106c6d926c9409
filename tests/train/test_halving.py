"""Learning rate that is halved after the validation loss rises, also after a resume."""

import json
import shutil
from dataclasses import asdict
from itertools import pairwise

import pytest

from megaptm.resilience.events import read_events
from megaptm.run.held_out import HeldOutLoss
from megaptm.track import read_metrics
from tests.drills.program import arguments, losses
from tests.forked import megaptm

# The rate is so high that it destroys what the first batches taught.
SHORT = (
    *(
        "train.steps=12",
        "optimizer.lr=2.0",
        "optimizer.warmup_steps=0",
        "optimizer.clip=null",
        "train.validate_every=2",
    ),
    *("optimizer.decay=halving", "optimizer.decay_steps=3", "optimizer.name=sgd", "optimizer.weight_decay=0.0"),
)


@pytest.mark.parametrize(
    ("validation_losses", "rose"), [([3.0, 2.0, 1.0], None), ([3.0, 2.0, 2.0], None), ([3.0, 2.0, 2.5, 1.0, 4.0], 30)]
)
def test_first_rise_of_validation_loss_is_stored(validation_losses, rose):
    held_out = HeldOutLoss()
    for step, loss in enumerate(validation_losses, 1):
        held_out.add(10 * step, {"loss": loss})
    assert (held_out.rose, held_out.last) == (rose, validation_losses[-1])
    again = HeldOutLoss()
    again.restore(json.loads(json.dumps(asdict(held_out))))
    assert again == held_out


def train(run, corpus, *more, code=0):
    """Train a run; return its learning rates and validation losses by step."""
    megaptm("train", *arguments("gpt2", run, corpus, *SHORT, *more), code=code)
    records = read_metrics(run)
    return (
        {record["step"]: record["learning_rate"] for record in records if "learning_rate" in record},
        {record["step"]: record["validation/loss"] for record in records if "validation/loss" in record},
    )


@pytest.fixture(scope="module")
def uninterrupted(real_corpus, tmp_path_factory):
    """Uninterrupted run, its learning rates and validation losses."""
    run = tmp_path_factory.mktemp("halving") / "whole"
    return run, *train(run, real_corpus("byte-bpe"))


def test_halving_schedule_is_the_same_after_resume(uninterrupted, real_corpus, tmp_path):
    run, rates, held_out = uninterrupted
    measured = sorted(held_out)
    rose = next((step for before, step in pairwise(measured) if held_out[step] > held_out[before]), 99)
    expected = {step: 2.0 if step <= rose else 2.0 * 0.5 ** (1 + (step - 1 - rose) // 3) for step in range(1, 13)}
    assert rose < 12, held_out
    assert rates == pytest.approx(expected)
    stop = rose + 1  # the checkpoint must contain the rise: no later loss exceeds the previous one
    train(tmp_path / "cut", real_corpus("byte-bpe"), f"train.stop_at={stop}", code=75)
    again, _ = train(tmp_path / "cut", real_corpus("byte-bpe"))
    assert again == rates
    assert losses(tmp_path / "cut") == losses(run)


def test_resumed_run_makes_up_for_a_validation_that_a_stop_prevented(uninterrupted, real_corpus, tmp_path):
    """The checkpoint of step 2 has no validation, as after a signal in it."""
    run, rates, held_out = uninterrupted
    cut = tmp_path / "cut"
    train(cut, real_corpus("byte-bpe"), "train.stop_at=2", "train.validate_every=12", code=75)
    assert train(cut, real_corpus("byte-bpe")) == (rates, held_out)
    assert losses(cut) == losses(run)
    first = [event for event in read_events(cut) if event["kind"] == "first-step"][-1]
    [late] = [record for record in read_metrics(cut) if record.get("step") == 2 and "validation_seconds" in record]
    assert first["step_seconds"] > late["validation_seconds"], "it does not count as start-up"


def test_late_validation_is_made_once(uninterrupted, real_corpus, tmp_path):
    """The job that made up for the validation of step 2 is killed before it saves."""
    _, rates, held_out = uninterrupted
    cut = tmp_path / "cut"
    train(cut, real_corpus("byte-bpe"), "train.stop_at=2", "train.validate_every=12", code=75)
    train(cut, real_corpus("byte-bpe"), "train.stop_at=3", code=75)
    shutil.rmtree(cut / "checkpoints/step-00000003")
    left = [event for event in read_events(cut) if (event["kind"], event.get("step")) != ("checkpoint", 3)]
    (cut / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in left))
    assert train(cut, real_corpus("byte-bpe")) == (rates, held_out)
    assert [event["kind"] for event in read_events(cut)].count("late-validation") == 1
