"""Checkpoints by time: `checkpoint.every` as minutes, or auto."""

from math import sqrt
from statistics import mean

import pytest

from megaptm.checkpoint.store import CheckpointStore
from megaptm.config import CheckpointConfig, load_config
from megaptm.plan.failures import DAY
from megaptm.plan.machine import load_machine
from megaptm.plan.plan import make_plan
from megaptm.resilience.events import read_events
from megaptm.train.save_timer import FIRST_SECONDS, SaveTimer
from tests.bad_input.commands import user_error
from tests.drills.program import arguments, losses
from tests.forked import megaptm

NODES = 4
SLOW = """
import time

import megaptm


class Slow(megaptm.Callback):
    def on_step_end(self, run, result):
        time.sleep(0.4)
"""


@pytest.fixture
def clock(monkeypatch):
    """Clock that a test sets: its first value is the time."""
    times = [0.0]
    monkeypatch.setattr("megaptm.train.save_timer.time.monotonic", lambda: times[0])
    return times


def test_minutes_count_from_the_last_checkpoint(clock):
    timer = SaveTimer(CheckpointConfig(every="30m"), NODES)
    clock[0] = 1799.0
    assert not timer.is_due()
    timer.add_save(5.0)
    clock[0] = 1799.0 + 1800.0
    assert timer.is_due()


def test_auto_measures_the_cost_of_checkpoints(clock):
    """The first interval is a minute; the next has the least cost (Young, 1974), and no less than a write takes."""
    timer = SaveTimer(CheckpointConfig(every="auto", failures_per_node_day=0.01), NODES)
    assert timer.interval == FIRST_SECONDS
    for waited in (2.0, 4.0):
        timer.add_save(waited)
    assert timer.interval == pytest.approx(sqrt(2 * mean((2.0, 4.0)) * DAY / (0.01 * NODES)))
    timer.add_save(None)  # not saved
    assert timer.interval == pytest.approx(sqrt(2 * mean((2.0, 4.0)) * DAY / (0.01 * NODES)))
    timer.writing = 10_000.0
    assert timer.interval == 10_000.0


def test_all_ranks_save_the_same_steps(real_corpus, tmp_path, monkeypatch):
    """Only rank 0 is slow and knows the time; the losses are those of checkpoints by steps."""
    (tmp_path / "slow.py").write_text(SLOW)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    runs = {every: tmp_path / every for every in ("1s", "9")}
    for every, run in runs.items():
        keys = ("train.steps=9", "layout.data=2", f"checkpoint.every={every}", "checkpoint.keep=9")
        megaptm("train", *arguments("gpt2", run, real_corpus("byte-bpe"), *keys, "callbacks=[slow:Slow]"))
    saves = [event for event in read_events(runs["1s"]) if event["kind"] == "checkpoint"]
    assert len(saves) >= 3
    store = CheckpointStore(runs["1s"])
    assert [store.inspect(event["step"]).step for event in saves] == [event["step"] for event in saves]
    assert losses(runs["1s"]) == losses(runs["9"])


def test_plan_has_the_steps_of_the_time():
    """Jobs of 24 hours; with auto, the interval of least cost."""
    machine = load_machine("h100-80g")
    plan = make_plan(load_config("gpt3/175b", ["checkpoint.every=24h"]), machine)
    assert plan.failures.every == round(DAY / plan.step.seconds)
    best = make_plan(load_config("gpt3/175b", ["checkpoint.every=auto"]), machine).failures
    assert best.every == best.best_interval_steps
    assert best.goodput == pytest.approx(best.best_goodput, rel=1e-3)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["checkpoint.every=0m"], "checkpoint.every must be a number of steps, a time as in 30m or 2h, or auto"),
        (["checkpoint.every=often"], "checkpoint.every must be a number of steps, a time as in 30m or 2h, or auto"),
        (["checkpoint.every=-5"], "checkpoint.every must be a number of steps, a time as in 30m or 2h, or auto"),
        (["checkpoint.every=30m", "checkpoint.keep.best=1"], "checkpoint.every is 30m: set it to a number of steps"),
    ],
)
def test_mistakes_have_a_sentence(tmp_path, words, sentence):
    assert sentence in user_error(
        "train", "gpt2/tiny", f"run={tmp_path / 'run'}", "data.mix={corpora/books: 1}", *words
    )
