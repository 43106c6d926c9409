"""Whatever is killed, and whenever: nobody is left behind, and the run goes on from its last checkpoint."""

import signal
from dataclasses import dataclass, field

import pytest

from megaptm.resilience.events import read_events
from tests.drills.program import (
    checkpoints,
    family_of,
    finish,
    last_step,
    losses,
    resumed_at,
    start,
    wait_for,
)
from tests.processes import command_of, environment_of, send, survivors

pytestmark = pytest.mark.drill


@dataclass
class Story:
    """What happened to a run whose jobs were killed one after the other, until one came through."""

    worker_code: int = 0
    worker_said: str = ""
    worker_survivors: list = field(default_factory=list)
    launcher_survivors: list = field(default_factory=list)
    saved: list[int] = field(default_factory=list)
    """The newest checkpoint after each kill."""
    half_written: int = 0
    """The step whose checkpoint was being written."""
    end: int = -1
    resumed: list[int] = field(default_factory=list)
    losses: dict[int, list[float]] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    lost: dict = field(default_factory=dict)


@pytest.fixture(scope="module")
def story(unbroken, tmp_path_factory):
    run = tmp_path_factory.mktemp("killed") / "run"
    words, told = unbroken.arguments(run), Story()
    _kill_a_worker(words, run, told)
    _kill_the_launcher(words, run, told)
    _kill_in_a_checkpoint(words, run, told)
    told.end = finish("train", *words).returncode
    told.resumed, told.losses = resumed_at(run), losses(run)
    told.left = [path.name for path in (run / "checkpoints").iterdir() if path.suffix]
    told.lost = next(event for event in read_events(run) if event["kind"] == "worker-lost")
    return told


def _kill_a_worker(words, run, told):
    job = start("train", *words)
    wait_for(lambda: last_step(run) > 25, job)
    everybody = family_of(job)
    next(process for process in everybody if _is_rank(process, 1)).kill()
    _, told.worker_said = job.communicate(timeout=120)
    told.worker_code = job.returncode
    told.worker_survivors = survivors(everybody)
    told.saved.append(checkpoints(run)[-1])


def _kill_the_launcher(words, run, told):
    job = start("train", *words)
    begun = wait_for(lambda: resumed_at(run), job)[-1]
    wait_for(lambda: checkpoints(run)[-1] > begun, job)
    everybody = family_of(job)
    job.kill()
    told.launcher_survivors = survivors(everybody)
    job.communicate(timeout=120)
    told.saved.append(checkpoints(run)[-1])


def _kill_in_a_checkpoint(words, run, told):
    seen = set(_being_written(run))  # by the job before
    job = start("train", *words)
    while True:
        [writing] = wait_for(lambda: set(_being_written(run)) - seen, job, every=0.0)
        everybody = family_of(job)
        send(everybody, signal.SIGSTOP)
        if writing.exists() and not (writing / "manifest.json").exists():
            break
        seen.add(writing)  # it was committed while we were looking: catch the next one
        send(everybody, signal.SIGCONT)
    told.half_written = int(writing.name.removeprefix("step-").partition(".")[0])
    job.kill()
    send(everybody, signal.SIGKILL)
    job.communicate(timeout=120)
    told.saved.append(checkpoints(run)[-1])


def _being_written(run):
    return (run / "checkpoints").glob("*.writing-*")


def _is_rank(process, rank):
    return "megaptm.train.worker" in command_of(process) and environment_of(process).get("RANK") == str(rank)


def test_a_killed_worker_is_named_first(story):
    assert story.worker_code == 1
    said = [line for line in story.worker_said.splitlines() if "Warning" not in line and "warn" not in line]
    assert said[0].startswith("rank 1 was killed by signal 9 (SIGKILL)")
    assert "Traceback" not in story.worker_said
    assert (story.lost["rank"], story.lost["code"]) == (1, -9)


def test_no_process_outlives_a_killed_worker(story):
    assert story.worker_survivors == []


def test_no_process_outlives_a_killed_launcher(story):
    assert story.launcher_survivors == []


def test_a_checkpoint_killed_in_the_making_is_none(story):
    assert story.saved[2] < story.half_written


def test_each_job_continues_from_the_last_checkpoint_of_the_one_before(story):
    assert story.end == 0
    assert story.resumed == story.saved
    assert story.left == []


def test_the_run_ends_as_if_nothing_had_happened(story, unbroken):
    assert story.losses.keys() == unbroken.losses.keys()
    for step, [loss] in unbroken.losses.items():
        assert set(story.losses[step]) == {loss}, step
    assert max(map(len, story.losses.values())) > 1  # steps lost and done again
