"""After any process is killed at any time, no process is left, and the run resumes from its newest checkpoint."""

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
class KillOutcome:
    """Results of a run whose jobs were killed one after the other, until one finished."""

    worker_code: int = 0
    worker_output: str = ""
    worker_survivors: list = field(default_factory=list)
    launcher_survivors: list = field(default_factory=list)
    saved: list[int] = field(default_factory=list)
    """Newest checkpoint after each kill."""
    unfinished_step: int = 0
    """Step whose checkpoint was being written."""
    end: int = -1
    resumed: list[int] = field(default_factory=list)
    losses: dict[int, list[float]] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    lost: dict = field(default_factory=dict)


@pytest.fixture(scope="module")
def outcome(undisturbed_run, tmp_path_factory):
    run = tmp_path_factory.mktemp("killed") / "run"
    words, result = undisturbed_run.arguments(run), KillOutcome()
    _kill_a_worker(words, run, result)
    _kill_the_launcher(words, run, result)
    _kill_during_a_checkpoint(words, run, result)
    result.end = finish("train", *words).returncode
    result.resumed, result.losses = resumed_at(run), losses(run)
    result.left = [path.name for path in (run / "checkpoints").iterdir() if path.suffix]
    result.lost = next(event for event in read_events(run) if event["kind"] == "worker-lost")
    return result


def _kill_a_worker(words, run, result):
    job = start("train", *words)
    wait_for(lambda: last_step(run) > 25, job)
    processes = family_of(job)
    next(process for process in processes if _is_rank(process, 1)).kill()
    _, result.worker_output = job.communicate(timeout=120)
    result.worker_code = job.returncode
    result.worker_survivors = survivors(processes)
    result.saved.append(checkpoints(run)[-1])


def _kill_the_launcher(words, run, result):
    job = start("train", *words)
    resume_step = wait_for(lambda: resumed_at(run), job)[-1]
    wait_for(lambda: checkpoints(run)[-1] > resume_step, job)
    processes = family_of(job)
    job.kill()
    result.launcher_survivors = survivors(processes)
    job.communicate(timeout=120)
    result.saved.append(checkpoints(run)[-1])


def _kill_during_a_checkpoint(words, run, result):
    known = set(_unfinished_checkpoints(run))  # of the previous job
    job = start("train", *words)
    while True:
        [writing] = wait_for(lambda: set(_unfinished_checkpoints(run)) - known, job, every=0.0)
        processes = family_of(job)
        send(processes, signal.SIGSTOP)
        if writing.exists() and not (writing / "manifest.json").exists():
            break
        known.add(writing)  # it was committed in the meantime: take the next one
        send(processes, signal.SIGCONT)
    result.unfinished_step = int(writing.name.removeprefix("step-").partition(".")[0])
    job.kill()
    send(processes, signal.SIGKILL)
    job.communicate(timeout=120)
    result.saved.append(checkpoints(run)[-1])


def _unfinished_checkpoints(run):
    return (run / "checkpoints").glob("*.writing-*")


def _is_rank(process, rank):
    return "megaptm.train.worker" in command_of(process) and environment_of(process).get("RANK") == str(rank)


def test_killed_worker_is_reported_first(outcome):
    assert outcome.worker_code == 1
    lines = [line for line in outcome.worker_output.splitlines() if "Warning" not in line and "warn" not in line]
    assert lines[0].startswith("rank 1 was killed by signal 9 (SIGKILL)")
    assert "Traceback" not in outcome.worker_output
    assert (outcome.lost["rank"], outcome.lost["code"]) == (1, -9)


def test_no_process_survives_a_killed_worker(outcome):
    assert outcome.worker_survivors == []


def test_no_process_survives_a_killed_launcher(outcome):
    assert outcome.launcher_survivors == []


def test_unfinished_checkpoint_is_not_committed(outcome):
    assert outcome.saved[2] < outcome.unfinished_step


def test_each_job_resumes_from_newest_checkpoint(outcome):
    assert outcome.end == 0
    assert outcome.resumed == outcome.saved
    assert outcome.left == []


def test_losses_equal_undisturbed_run(outcome, undisturbed_run):
    assert outcome.losses.keys() == undisturbed_run.losses.keys()
    for step, [loss] in undisturbed_run.losses.items():
        assert set(outcome.losses[step]) == {loss}, step
    assert max(map(len, outcome.losses.values())) > 1  # some steps were repeated
