"""A slow rank is named, although all ranks take the same time for a step, because they wait for each other."""

import socket

import pytest

from megaptm.config import StragglerConfig
from megaptm.resilience.events import read_events
from megaptm.track import read_metrics
from megaptm.train.stragglers import SlowRanks
from tests.drills.program import arguments
from tests.forked import megaptm

SLOW = '''
import time

import megaptm
from megaptm.parallel.engine import Engine

train_step, pause = Engine.train_step, 0.2


def sleep_before(engine, *arguments, **options):
    global pause
    time.sleep(pause)
    start_time = time.monotonic()
    result = train_step(engine, *arguments, **options)
    pause = max(0.2, 4 * (time.monotonic() - start_time))  # more than the work of any rank, also on a busy machine
    return result


class Slow(megaptm.Callback):
    """Slow down the steps of rank 0: callbacks exist on rank 0 only."""

    def on_run_start(self, run):
        Engine.train_step = sleep_before
'''
LAYOUT = ("layout.data=2", "layout.tensor=2", "train.steps=7", "train.stragglers={}")


@pytest.fixture(scope="module")
def corpus(real_corpus):
    return real_corpus("byte-bpe")


def stragglers(run):
    return [event for event in read_events(run) if event["kind"] == "straggler"]


def rank_seconds(run):
    names = ("fastest", "median", "slowest")
    return {
        record["step"]: [record[f"rank_seconds/{name}"] for name in names]
        for record in read_metrics(run)
        if "rank_seconds/slowest" in record
    }


def test_slow_rank_is_named_with_its_host(corpus, tmp_path, monkeypatch):
    """Its tensor and data neighbors are not, although they wait for it in each layer."""
    (tmp_path / "slow.py").write_text(SLOW)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    run, keys = tmp_path / "run", (*LAYOUT, "callbacks=[slow:Slow]", "train.stragglers={factor: 3.0, intervals: 3}")
    output = megaptm("train", *arguments("gpt2", run, corpus, *keys))
    [event] = stragglers(run)
    assert (event["ranks"], event["hosts"]) == ([0], [socket.gethostname()])
    assert event["seconds"] > 3 * event["median_seconds"]
    named = f"rank 0 on {socket.gethostname()}: slow in 3 measurements in a row"
    assert f"warning: {named}. Own work of a step takes" in output
    report = megaptm("report", run)
    assert "own work of a step of the slowest rank, seconds, median" in report


def test_equal_ranks_are_measured_and_not_reported(corpus, tmp_path):
    run = tmp_path / "run"
    megaptm("train", *arguments("gpt2", run, corpus, *LAYOUT, "train.steps=13"))
    assert stragglers(run) == []
    seconds = rank_seconds(run)
    assert [*seconds] == [*range(1, 13)]  # the job ends after the last step, before its measurement is sent
    assert all(0 < fastest <= median <= slowest for fastest, median, slowest in seconds.values())


def test_ranks_are_not_measured_without_the_section(corpus, tmp_path):
    megaptm("train", *arguments("gpt2", tmp_path / "run", corpus, *LAYOUT[:1], "train.steps=3"))
    assert rank_seconds(tmp_path / "run") == {}


def test_ranks_with_other_work_are_not_compared():
    ranks = SlowRanks(StragglerConfig(intervals=1), ["a", "a", "b", "b"], [0, 0, 1, 1])
    assert ranks.add(1, [1.0, 1.1, 9.0, 9.9], [0.0] * 4) == (None, "")
    event, warning = ranks.add(2, [1.0, 1.1, 9.0, 13.6], [0.0, 0.0, 0.0, 4.0])
    assert event is not None
    assert event.ranks == [3]
    assert event.hosts == ["b"]
    assert "13.6 s on rank 3, 4 s of them waiting for data, and 9 s on half of the ranks of its stage" in warning


def test_rank_is_reported_once_until_it_was_fast():
    ranks = SlowRanks(StragglerConfig(intervals=2), ["a"] * 3, [0] * 3)
    slow, fast = [1.0, 1.0, 2.0], [1.0, 1.0, 1.0]
    events = [ranks.add(step, own, [0.0] * 3)[0] for step, own in enumerate([slow, slow, slow, fast, slow, slow])]
    assert [event is not None for event in events] == [False, True, False, False, False, True]
