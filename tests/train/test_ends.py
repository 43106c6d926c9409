"""How runs end that do not end by themselves: each start of one run, which trains, is ended in another way."""

import os
import re
import signal

import pytest

from megaptm.resilience.events import read_events
from megaptm.run.time_spent import job_times, time_spent
from megaptm.track import read_metrics
from tests.drills.program import arguments, checkpoints, family_of, resumed_at, start, wait_for
from tests.processes import send, survivors

HANG_SECONDS = 20


class Runs:
    """Starts of one run of two ranks, each with two loaders, that would go on for ever."""

    def __init__(self, run, corpus):
        self.run, self.corpus, self.begun = run, corpus, 0
        more = ("layout.data=2", "data.workers=2", "train.steps=1000000", "checkpoint.every=3")
        self._words = arguments("gpt2", run, corpus, *more, f"train.hang_seconds={HANG_SECONDS}")

    def begin(self):
        """A start that has saved, its ranks and their loaders."""
        self.begun += 1
        before = max(checkpoints(self.run), default=0)
        job = start("train", *self._words)
        wait_for(lambda: max(checkpoints(self.run), default=0) > before, job)
        everybody = family_of(job)
        ranks = [process for process in everybody if process.parent().pid == job.pid]
        loaders = [process for process in everybody if process not in ranks]
        assert (len(ranks), len(loaders)) == (2, 4)
        return job, ranks, loaders

    def last(self, kind):
        return [event for event in read_events(self.run) if event["kind"] == kind][-1]


@pytest.fixture(scope="module")
def runs(real_corpus, tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("ends") / "run", real_corpus("byte-bpe"))


def left_of(processes):
    """Those that are alive some time later, killed now."""
    left = survivors(processes)
    send(left, signal.SIGKILL)
    return left


def test_a_halted_rank_is_named_and_its_time_is_lost(runs):
    job, ranks, loaders = runs.begin()
    send([ranks[1], *loaders], signal.SIGSTOP)
    _, said = job.communicate(timeout=240)
    assert job.returncode == 75, said
    assert "rank 1 hangs: for " in said
    assert "its process is halted (state T" in said
    hang = runs.last("hang")
    assert (hang["rank"], hang["seconds"] >= HANG_SECONDS) == (1, True)
    [stacks] = runs.run.glob("logs/heartbeats/*/rank-0.stacks")  # those of earlier starts are gone
    assert stacks.stat().st_size
    total = time_spent(job_times(read_events(runs.run), read_metrics(runs.run)))
    assert total.lost >= HANG_SECONDS
    assert left_of([*ranks, *loaders]) == []


def test_no_loader_outlives_a_launcher_that_is_killed(runs):
    """Loaders that are halted cannot look whether their rank is alive, nor can those that wait for a server."""
    job, ranks, loaders = runs.begin()
    send(loaders, signal.SIGSTOP)
    job.kill()
    job.communicate()
    assert left_of([*ranks, *loaders]) == []


def assert_nothing_is_lost(runs, errors):
    """The last step that was done is saved, and the sentence says so."""
    done = max(record["step"] for record in read_metrics(runs.run) if "loss" in record)
    assert checkpoints(runs.run)[-1] == done
    assert f"the run is saved at step {done}." in errors


def test_a_shard_that_is_cut_short_under_its_readers_costs_no_step(runs):
    [shard] = runs.corpus.glob("train-*.tar")
    content = shard.read_bytes()
    job, ranks, loaders = runs.begin()
    try:
        os.truncate(shard, 1000)
        _, errors = job.communicate(timeout=240)
    finally:
        shard.write_bytes(content)
    assert job.returncode == 2, errors
    assert re.search(rf"error: {shard} was cut short while it was read: it had [\d,]+ bytes and has 1,000; ", errors)
    assert_nothing_is_lost(runs, errors)
    assert left_of([*ranks, *loaders]) == []


def test_a_loader_that_is_killed_is_told_in_a_sentence(runs):
    job, ranks, loaders = runs.begin()
    next(loader for loader in loaders if loader.parent().pid == ranks[1].pid).kill()
    _, errors = job.communicate(timeout=240)
    assert job.returncode == 1, errors
    assert re.search(r"error: process \d+, which reads data, was lost \(signal 9, Killed\): .*out of memory", errors)
    assert_nothing_is_lost(runs, errors)
    assert "Traceback" not in errors
    assert "which reads data, was lost" in runs.last("worker-lost")["problem"]
    assert left_of([*ranks, *loaders]) == []


def test_a_signal_to_another_rank_than_the_first_is_told(runs):
    job, ranks, loaders = runs.begin()
    ranks[1].send_signal(signal.SIGTERM)
    said, errors = job.communicate(timeout=240)
    assert job.returncode == 75, errors
    assert "stopped by SIGTERM, which rank 1 was sent" in said
    assert runs.last("stop-signal")["signal"] == "SIGTERM"
    assert left_of([*ranks, *loaders]) == []


def test_ctrl_c_saves_and_a_second_one_leaves_at_once(runs):
    job, ranks, loaders = runs.begin()
    send(ranks, signal.SIGSTOP)  # so that the step cannot end before the second Ctrl-C
    job.send_signal(signal.SIGINT)
    said = ""
    while "exit at once" not in said:
        line = job.stderr.readline()
        assert line, f"it ended and said only: {said}"
        said += line
    assert "Ctrl-C: finishing the step and saving; then exiting with code 75." in said
    job.send_signal(signal.SIGINT)
    _, said = job.communicate(timeout=60)
    assert job.returncode == 130, said
    assert re.search(r"Left at once; step \d+ is saved\.\n$", said)
    assert read_events(runs.run)[-1]["kind"] == "interrupt"
    kinds = [event["kind"] for event in read_events(runs.run)]
    assert "worker-lost" not in kinds[-kinds[::-1].index("launch") :]
    assert left_of([*ranks, *loaders]) == []
    assert len(resumed_at(runs.run)) == runs.begun - 1
