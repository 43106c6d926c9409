"""A run that is stopped saves and exits with code 75; continued, it equals an undisturbed run."""

import signal

import pytest

from megaptm.errors import EXIT_CONTINUE
from megaptm.resilience.events import read_events
from tests.drills.conftest import STEPS
from tests.drills.program import arguments, checkpoints, finish, last_step, losses, resumed_at, start, wait_for

pytestmark = pytest.mark.drill


def stop_with(number, words, run, *, after):
    """Start, wait for a step, send a signal; return the last step done."""
    job = start("train", *words)
    wait_for(lambda: last_step(run) > after, job)
    job.send_signal(number)
    output = job.communicate(timeout=120)
    assert job.returncode == EXIT_CONTINUE, output
    assert checkpoints(run)[-1] == last_step(run) < STEPS
    return last_step(run)


def test_resume_is_bit_identical(undisturbed_run, tmp_path):
    run = tmp_path / "run"
    words = undisturbed_run.arguments(run)
    first = stop_with(signal.SIGTERM, words, run, after=5)
    second = stop_with(signal.SIGUSR1, words, run, after=first)
    assert finish("train", *words).returncode == 0
    assert resumed_at(run) == [first, second]
    assert [event["signal"] for event in read_events(run) if event["kind"] == "stop-signal"] == ["SIGTERM", "SIGUSR1"]
    assert losses(run) == undisturbed_run.losses


def test_resume_on_other_layouts_matches_one_process(tmp_path, real_corpus):
    layouts = [
        ["layout.tensor=2"],
        ["layout.tensor=1", "layout.pipeline=2"],
        ["layout.pipeline=1", "layout.data=2", "layout.distributed_optimizer=true"],
        ["layout.data=1", "layout.distributed_optimizer=false"],
    ]
    reference, resumed, corpus = tmp_path / "alone", tmp_path / "moved", real_corpus("wordpiece")
    assert finish("train", *arguments("bert", reference, corpus, "train.steps=24")).returncode == 0
    for number, layout in enumerate(layouts, 1):
        last = number == len(layouts)
        words = arguments("bert", resumed, corpus, "train.steps=24", f"train.stop_at={24 if last else 6 * number}")
        done = finish("train", *words, *layout)
        assert done.returncode == (0 if last else EXIT_CONTINUE), done.stderr
    assert resumed_at(resumed) == [6, 12, 18]
    assert losses(resumed) == {step: pytest.approx(loss, rel=1e-5) for step, loss in losses(reference).items()}
