"""No process outlives its run, whoever dies first."""

import signal

import pytest

from tests.drills.program import arguments, family_of, last_step, start, wait_for
from tests.processes import send, survivors


@pytest.fixture
def job(real_corpus, tmp_path):
    """Two ranks that train, each with two loaders."""
    run = tmp_path / "run"
    settings = ("layout.data=2", "data.workers=2", "train.steps=1000000")
    job = start("train", *arguments("gpt2", run, real_corpus("byte-bpe"), *settings))
    wait_for(lambda: last_step(run), job)
    yield job
    job.kill()
    job.communicate()


def test_no_loader_outlives_a_launcher_that_is_killed(job):
    """Loaders that are halted cannot look whether their rank is alive, nor can those that wait for a server."""
    everybody = family_of(job)
    ranks = [process for process in everybody if process.parent().pid == job.pid]
    loaders = [process for process in everybody if process not in ranks]
    assert (len(ranks), len(loaders)) == (2, 4)
    send(loaders, signal.SIGSTOP)
    job.kill()
    left = survivors(everybody)
    send(left, signal.SIGKILL)
    assert left == []
