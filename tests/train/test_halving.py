"""A rate that is halved once the held-out loss rises: a run that was stopped goes on with the rate that it would have
had."""

from itertools import pairwise

import pytest

from megaptm.track import read_metrics
from megaptm.train.held_out import HeldOutLoss
from tests.drills.program import arguments, losses
from tests.forked import megaptm

# So high a rate that what was learned of the first batches is spoiled.
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
    ("told", "rose"), [([3.0, 2.0, 1.0], None), ([3.0, 2.0, 2.0], None), ([3.0, 2.0, 2.5, 1.0, 4.0], 30)]
)
def test_the_first_rise_is_remembered(told, rose):
    held_out = HeldOutLoss()
    for step, loss in enumerate(told, 1):
        held_out.add(10 * step, loss)
    assert (held_out.rose, held_out.last) == (rose, told[-1])
    again = HeldOutLoss()
    again.restore({"last": held_out.last, "rose": held_out.rose})
    assert again == held_out


def test_stopped_and_continued_it_has_the_same_rates(real_corpus, tmp_path):
    corpus = real_corpus("byte-bpe")

    def train(name, *more, code=0):
        megaptm("train", *arguments("gpt2", tmp_path / name, corpus, *SHORT, *more), code=code)
        records = read_metrics(tmp_path / name)
        rates = {one["step"]: one["learning_rate"] for one in records if "learning_rate" in one}
        return rates, {one["step"]: one["validation/loss"] for one in records if "validation/loss" in one}

    rates, held_out = train("whole")
    measured = sorted(held_out)
    rose = next((two for one, two in pairwise(measured) if held_out[two] > held_out[one]), 99)
    expected = {step: 2.0 if step <= rose else 2.0 * 0.5 ** (1 + (step - 1 - rose) // 3) for step in range(1, 13)}
    assert rose < 12, held_out
    assert rates == pytest.approx(expected)
    stop = rose + 1  # the checkpoint has to tell of it: no loss is above the one before that late
    train("cut", f"train.stop_at={stop}", code=75)
    again, _ = train("cut")
    assert again == rates
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
