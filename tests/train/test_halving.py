"""Learning rate that is halved after the validation loss rises, also after a resume."""

import json
from dataclasses import asdict
from itertools import pairwise

import pytest

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


def test_halving_schedule_is_the_same_after_resume(real_corpus, tmp_path):
    corpus = real_corpus("byte-bpe")

    def train(name, *more, code=0):
        megaptm("train", *arguments("gpt2", tmp_path / name, corpus, *SHORT, *more), code=code)
        records = read_metrics(tmp_path / name)
        rates = {record["step"]: record["learning_rate"] for record in records if "learning_rate" in record}
        return rates, {record["step"]: record["validation/loss"] for record in records if "validation/loss" in record}

    rates, held_out = train("whole")
    measured = sorted(held_out)
    rose = next((step for before, step in pairwise(measured) if held_out[step] > held_out[before]), 99)
    expected = {step: 2.0 if step <= rose else 2.0 * 0.5 ** (1 + (step - 1 - rose) // 3) for step in range(1, 13)}
    assert rose < 12, held_out
    assert rates == pytest.approx(expected)
    stop = rose + 1  # the checkpoint must contain the rise: no later loss exceeds the previous one
    train("cut", f"train.stop_at={stop}", code=75)
    again, _ = train("cut")
    assert again == rates
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
