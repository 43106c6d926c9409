"""A run whose numbers are no longer finite ends with one sentence, and what it saved before stays as it was."""

import pytest

from megaptm.errors import EXIT_USER_ERROR
from tests.drills.program import arguments, checkpoints, finish

TOO_HIGH = ("optimizer.warmup_steps=0", "optimizer.decay=constant", "optimizer.lr=1e30", "layout.data=2")


def sentence(done):
    assert done.returncode == EXIT_USER_ERROR, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    [line] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    return line


@pytest.fixture(scope="module")
def corpus(real_corpus):
    return real_corpus("byte-bpe")


def test_a_step_that_diverges_is_refused_and_the_checkpoint_before_it_stays(corpus, tmp_path):
    run = tmp_path / "run"
    done = finish("train", *arguments("gpt2", run, corpus, *TOO_HIGH, "train.steps=4", "checkpoint.every=1"))
    assert sentence(done).startswith("error: step 2 was refused before it changed a weight: its loss is ")
    assert "its loss is nan (lm nan) and the norm" in sentence(done)  # which loss, where there are several
    assert checkpoints(run) == [1]
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000001"]


def test_a_last_step_after_which_the_model_predicts_nothing_is_no_success(corpus, tmp_path):
    run = tmp_path / "run"
    done = finish("train", *arguments("gpt2", run, corpus, *TOO_HIGH, "train.steps=1"))
    assert sentence(done).startswith("error: the validation loss after step 1 is nan, so it was not saved; ")
    assert checkpoints(run) == []
