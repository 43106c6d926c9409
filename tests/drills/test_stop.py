"""Asked to stop, a run saves and says "continue me"; continued, it is the run that was never stopped."""

import signal

import pytest

from megaptm.errors import EXIT_CONTINUE
from megaptm.resilience.events import read_events
from tests.drills.conftest import STEPS
from tests.drills.program import arguments, checkpoints, finish, last_step, losses, resumed_at, start, wait_for

pytestmark = pytest.mark.drill


def stop_by(number, words, run, *, after):
    """Start, wait for a step, send a signal: which step it meets is up to the machine. Returns the last step done."""
    job = start("train", *words)
    wait_for(lambda: last_step(run) > after, job)
    job.send_signal(number)
    said = job.communicate(timeout=120)
    assert job.returncode == EXIT_CONTINUE, said
    assert checkpoints(run)[-1] == last_step(run) < STEPS
    return last_step(run)


def test_a_run_stopped_twice_is_to_the_last_bit_the_run_that_was_not(unbroken, tmp_path):
    run = tmp_path / "run"
    words = unbroken.arguments(run)
    first = stop_by(signal.SIGTERM, words, run, after=5)
    second = stop_by(signal.SIGUSR1, words, run, after=first)
    assert finish("train", *words).returncode == 0
    assert resumed_at(run) == [first, second]
    assert [event["signal"] for event in read_events(run) if event["kind"] == "stop-signal"] == ["SIGTERM", "SIGUSR1"]
    assert losses(run) == unbroken.losses


def test_a_run_continued_on_other_layouts_is_the_run_on_one_process(tmp_path, real_corpus):
    layouts = [
        ["layout.tensor=2"],
        ["layout.tensor=1", "layout.pipeline=2"],
        ["layout.pipeline=1", "layout.data=2", "layout.distributed_optimizer=true"],
        ["layout.data=1", "layout.distributed_optimizer=false"],
    ]
    alone, moved, corpus = tmp_path / "alone", tmp_path / "moved", real_corpus("wordpiece")
    assert finish("train", *arguments("bert", alone, corpus, "train.steps=24")).returncode == 0
    for number, layout in enumerate(layouts, 1):
        last = number == len(layouts)
        words = arguments("bert", moved, corpus, "train.steps=24", f"train.stop_at={24 if last else 6 * number}")
        done = finish("train", *words, *layout)
        assert done.returncode == (0 if last else EXIT_CONTINUE), done.stderr
    assert resumed_at(moved) == [6, 12, 18]
    assert losses(moved) == {step: pytest.approx(loss, rel=1e-5) for step, loss in losses(alone).items()}
