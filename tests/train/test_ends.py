"""Ways in which processes end a run: signals, lost workers, truncated files."""

import os
import re
import shutil
import signal

import pytest

from megaptm.resilience.events import read_events
from megaptm.run.time_spent import job_times, time_spent
from megaptm.track import read_metrics
from tests.drills.program import arguments, checkpoints, family_of, resumed_at, start, wait_for
from tests.processes import send, survivors

HANG_SECONDS = 20


class Runs:
    """Endless run of two ranks with two loader workers each, started several times."""

    def __init__(self, run, corpus):
        self.run, self.corpus, self.num_starts = run, corpus, 0
        more = ("layout.data=2", "data.workers=2", "train.steps=1000000", "checkpoint.every=3")
        self._words = arguments("gpt2", run, corpus, *more, f"train.hang_seconds={HANG_SECONDS}")

    def start_and_save(self):
        """Start the run and wait for a checkpoint; return the job, its ranks and their loader workers."""
        self.num_starts += 1
        before = max(checkpoints(self.run), default=0)
        job = start("train", *self._words)
        wait_for(lambda: max(checkpoints(self.run), default=0) > before, job)
        family = family_of(job)
        ranks = [process for process in family if process.parent().pid == job.pid]
        loaders = [process for process in family if process not in ranks]
        assert (len(ranks), len(loaders)) == (2, 4)
        return job, ranks, loaders

    def last(self, kind):
        return [event for event in read_events(self.run) if event["kind"] == kind][-1]


@pytest.fixture(scope="module")
def runs(real_corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ends")
    return Runs(folder / "run", shutil.copytree(real_corpus("byte-bpe"), folder / "corpus"))


def kill_survivors(processes):
    """Kill the processes that are still alive after a while, and return them."""
    left = survivors(processes)
    send(left, signal.SIGKILL)
    return left


def test_stopped_rank_is_reported_as_hanging(runs):
    job, ranks, loaders = runs.start_and_save()
    send([ranks[1], *loaders], signal.SIGSTOP)
    _, output = job.communicate(timeout=240)
    assert job.returncode == 75, output
    assert "rank 1 hangs: for " in output
    assert "its process is stopped (state T" in output
    hang = runs.last("hang")
    assert (hang["rank"], hang["seconds"] >= HANG_SECONDS) == (1, True)
    [stacks] = runs.run.glob("logs/heartbeats/*/rank-0.stacks")  # files of earlier starts are deleted
    assert stacks.stat().st_size
    total = time_spent(job_times(read_events(runs.run), read_metrics(runs.run)))
    assert total.lost > HANG_SECONDS / 2  # rank 0 can record a step after the last heartbeat of rank 1
    assert kill_survivors([*ranks, *loaders]) == []


def test_loader_workers_end_with_a_killed_launcher(runs):
    """Workers that are stopped cannot check whether their rank is alive; neither can those that wait for a server."""
    job, ranks, loaders = runs.start_and_save()
    send(loaders, signal.SIGSTOP)
    job.kill()
    job.communicate()
    assert kill_survivors([*ranks, *loaders]) == []


def assert_nothing_is_lost(runs, errors):
    """Check that the last finished step is saved, and that the error message says so."""
    done = max(record["step"] for record in read_metrics(runs.run) if "loss" in record)
    assert checkpoints(runs.run)[-1] == done
    assert f"the run is saved at step {done}." in errors


def test_truncated_shard_loses_no_step(runs):
    [shard] = runs.corpus.glob("train-*.tar")
    content = shard.read_bytes()
    job, ranks, loaders = runs.start_and_save()
    try:
        os.truncate(shard, 1000)
        _, errors = job.communicate(timeout=240)
    finally:
        shard.write_bytes(content)
    assert job.returncode == 2, errors
    assert re.search(rf"error: {shard} was truncated while it was read: it had [\d,]+ bytes and has 1,000; ", errors)
    assert_nothing_is_lost(runs, errors)
    assert kill_survivors([*ranks, *loaders]) == []


def test_killed_loader_worker_is_reported(runs):
    job, ranks, loaders = runs.start_and_save()
    next(loader for loader in loaders if loader.parent().pid == ranks[1].pid).kill()
    _, errors = job.communicate(timeout=240)
    assert job.returncode == 1, errors
    assert re.search(r"error: data loader worker \d+ died \(signal 9, Killed\): .*out of memory", errors)
    assert_nothing_is_lost(runs, errors)
    assert "Traceback" not in errors
    assert re.search(r"data loader worker \d+ died", runs.last("worker-lost")["problem"])
    assert kill_survivors([*ranks, *loaders]) == []


def test_signal_to_another_rank_is_reported(runs):
    job, ranks, loaders = runs.start_and_save()
    ranks[1].send_signal(signal.SIGTERM)
    output, errors = job.communicate(timeout=240)
    assert job.returncode == 75, errors
    assert "stopped: rank 1 received SIGTERM" in output
    assert runs.last("stop-signal")["signal"] == "SIGTERM"
    assert kill_survivors([*ranks, *loaders]) == []


def test_second_ctrl_c_exits_at_once(runs):
    job, ranks, loaders = runs.start_and_save()
    send(ranks, signal.SIGSTOP)  # so that the step cannot end before the second Ctrl-C
    job.send_signal(signal.SIGINT)
    output = ""
    while "exit at once" not in output:
        line = job.stderr.readline()
        assert line, f"it ended and said only: {output}"
        output += line
    assert "Ctrl-C: finishing the step and saving; then exiting with code 75." in output
    job.send_signal(signal.SIGINT)
    _, output = job.communicate(timeout=60)
    assert job.returncode == 130, output
    assert re.search(r"Exited without saving; the newest checkpoint is of step \d+\.\n$", output)
    assert read_events(runs.run)[-1]["kind"] == "interrupt"
    kinds = [event["kind"] for event in read_events(runs.run)]
    assert "worker-lost" not in kinds[-kinds[::-1].index("launch") :]
    assert kill_survivors([*ranks, *loaders]) == []
    assert len(resumed_at(runs.run)) == runs.num_starts - 1
