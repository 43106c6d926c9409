"""Learning rate range test: rising rates, and the rate that it suggests."""

import math
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from megaptm.__main__ import main
from megaptm.config import load_config
from megaptm.errors import UserError
from megaptm.report.lr_range import LOSS, MIN_STEPS, RATE, RateRange
from megaptm.track import read_metrics
from megaptm.train.callbacks import RunState
from megaptm.train.range_test import RangeTest
from tests.bad_input.commands import user_error
from tests.drills.program import arguments, finish

STEPS = 40


def records(loss_of, *, steps=200, low=1e-5, high=10.0):
    """Return the metrics of steps whose loss is a function of the rate."""
    rates = [low * (high / low) ** (step / steps) for step in range(1, steps + 1)]
    return [{"step": step, RATE: rate, LOSS: loss_of(rate)} for step, rate in enumerate(rates, start=1)]


def valley(rate):
    """Loss that falls to its lowest value at a rate of 0.1, and diverges above."""
    distance = math.log10(rate / 0.1)
    return 2.0 + 0.5 * distance**2 if distance < 0 else 2.0 + 30.0 * distance


def test_suggestion_is_a_tenth_of_the_rate_with_the_lowest_loss():
    result = RateRange.from_records(records(valley))
    assert result.lowest_loss_rate == pytest.approx(0.1, rel=0.6)
    assert result.suggested == result.lowest_loss_rate / 10
    assert result.smoothed[-1] <= 4.0 * min(result.smoothed)
    assert result.rates[-1] < 10.0
    assert result.steepest_fall_rate < result.lowest_loss_rate


def test_range_ends_where_the_loss_is_not_finite():
    result = RateRange.from_records(records(lambda rate: math.nan if rate > 0.01 else 5.0 - rate))
    assert result.rates[-1] == pytest.approx(0.01, rel=0.1)


def test_too_few_steps_are_refused():
    with pytest.raises(UserError, match=f"needs {MIN_STEPS}: give more --steps"):
        RateRange.from_records(records(lambda rate: math.nan if rate > 1.5e-5 else 5.0))


def test_command_trains_at_rising_rates(real_corpus, tmp_path):
    """The second command shows the same range without a second run. The config keeps its best checkpoints."""
    keys = ("train.validate_every=2", "checkpoint.every=2", "checkpoint.keep={last: 2, every: 4, best: 1}")
    words = ["tune", "lr", *arguments("gpt2", tmp_path / "run", real_corpus("byte-bpe"), *keys)]
    words += ["--steps", str(STEPS), "--min-lr", "1e-4", "--max-lr", "1"]
    done = finish(*words)
    assert done.returncode == 0, done.stderr
    run = tmp_path / f"run/0.0001-1-{STEPS}"
    rates = [record[RATE] for record in read_metrics(run) if RATE in record]
    assert rates == pytest.approx([1e-4 ** (1 - step / STEPS) for step in range(1, STEPS + 1)])
    assert (run / "report/lr-range.png").read_bytes().startswith(b"\x89PNG")
    assert not [name for record in read_metrics(run) for name in record if name.startswith("validation")]
    assert done.stdout.startswith(f"Training at learning rates from 0.0001 to 1, for {STEPS} steps or until")
    assert len(re.findall(r"^step \d+/", done.stdout, re.MULTILINE)) < STEPS
    [*_, head, command] = done.stdout.splitlines()
    assert (head, done.stdout.count("next:")) == ("next:", 1)
    assert 1e-5 < float(command.rpartition(" optimizer.lr=")[2]) < 0.1
    assert "run=" not in command
    assert CliRunner().invoke(main, words).output.splitlines()[-1] == command
    assert "has a test with another config (train.batch)" in user_error(*words, "train.batch=24")


def test_range_test_ends_when_the_loss_diverges():
    test, run = RangeTest(100), RunState(Path(), load_config("gpt2/tiny"))
    for step, loss in enumerate([3.0] * 10 + [90.0] * 5, start=1):
        run.step = step
        test.on_step_end(run, SimpleNamespace(loss=loss))
        if run.stop_reason is not None:
            break
    assert 11 <= step < 15
    assert "diverges" in run.stop_reason
    again = RangeTest(100)
    again.load_state_dict(test.state_dict())
    assert again.losses == test.losses


def test_mistakes_have_a_sentence(tmp_path):
    words = ("tune", "lr", "gpt2/tiny", f"run={tmp_path / 'run'}", "data.mix={corpora/books: 1}")
    keys = ("optimizer.warmup_shape=exponential", "optimizer.min_lr_ratio=0")
    assert "warmup_shape exponential needs optimizer.min_lr_ratio above 0" in user_error("train", *words[2:], *keys)
    assert "--min-lr (1) must be less than --max-lr (0.1)." in user_error(*words, "--min-lr", "1", "--max-lr", "0.1")
