"""Diverged runs end with one error message and keep earlier checkpoints."""

import pytest

from megaptm.errors import EXIT_USER_ERROR
from tests.drills.program import arguments, checkpoints
from tests.forked import megaptm

TOO_HIGH = ("optimizer.warmup_steps=0", "optimizer.decay=constant", "optimizer.lr=1e30", "layout.data=2")


def error_message(*words):
    """Return the error message of a run that must fail."""
    output = megaptm("train", *words, code=EXIT_USER_ERROR)
    assert "Traceback" not in output
    [line] = {line for line in output.splitlines() if line.startswith("error: ")}
    return line


@pytest.fixture(scope="module")
def corpus(real_corpus):
    return real_corpus("byte-bpe")


def test_diverged_step_is_rejected(corpus, tmp_path):
    run = tmp_path / "run"
    message = error_message(*arguments("gpt2", run, corpus, *TOO_HIGH, "train.steps=4", "checkpoint.every=1"))
    assert message.startswith("error: step 2 was rejected and changed no weight: its loss is ")
    assert "its loss is nan (lm nan) and its gradient norm" in message
    assert checkpoints(run) == [1]
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000001"]


def test_diverged_validation_is_an_error(corpus, tmp_path):
    run = tmp_path / "run"
    message = error_message(*arguments("gpt2", run, corpus, *TOO_HIGH, "train.steps=1"))
    assert message.startswith("error: the validation loss after step 1 is nan, so it was not saved; ")
    assert checkpoints(run) == []
