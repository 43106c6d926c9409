"""Remaining time of a run, with its validations and checkpoints; tokens by corpus."""

import pytest

from megaptm.config import load_config
from megaptm.mixture import short_names
from megaptm.track import read_metrics
from megaptm.train.time_left import VALIDATION_SHARE, TimeLeft
from tests.drills.program import arguments
from tests.forked import megaptm
from tests.train.runs import CONFIGS, build, write_text

SECONDS = 100.0


@pytest.fixture
def clock(monkeypatch):
    """Stop the clock at 100 s after the first step."""
    monkeypatch.setattr("megaptm.train.time_left.time.monotonic", lambda: SECONDS)


def time_left(*overrides, **counts):
    config = load_config(CONFIGS / "gpt2/tiny.yaml", ["model.vocabulary=300", "train.steps=100", *overrides])
    return TimeLeft(config, first_step=1, start_time=0.0, **counts)


def test_steps_alone(clock):
    """A validation and a checkpoint took 20 of 100 s, so a step takes 8 s. Both follow the last step."""
    left = time_left("train.validate_every=null", "checkpoint.every=1000", num_validations=1, num_saves=1)
    seconds = left.estimate(11, validation=15.0, checkpoint=5.0)
    assert seconds == pytest.approx(89 * 8.0 + 15.0 + 5.0)


def test_validations_and_checkpoints_are_counted(clock):
    """Validations after steps 20, 40, 60, 80 and 100, of which that of step 20 is still to be done; saves every 30."""
    left = time_left("train.validate_every=20", "checkpoint.every=30", num_validations=2, num_saves=4)
    seconds = left.estimate(20, validation=3.0, checkpoint=2.0)
    assert seconds == pytest.approx(80 * 95.0 / 19 + 5 * 1.5 + 4 * 0.5)


def test_validation_that_was_not_measured_is_estimated(clock):
    left = time_left("train.validate_every=50", "train.validate_batches=6", "checkpoint.every=1000")
    seconds = left.estimate(11, validation=0.0, checkpoint=0.0)
    assert seconds == pytest.approx(89 * 10.0 + 2 * 6 * VALIDATION_SHARE * 10.0)


@pytest.mark.parametrize(("step", "is_known"), [(1, False), (2, False), (3, True)])
def test_two_steps_after_the_first_give_an_estimate(clock, step, is_known):
    """The first step of a job compiles, and fills caches."""
    left = time_left("train.validate_every=null", "checkpoint.every=1000")
    assert (left.estimate(step, validation=0.0, checkpoint=0.0) is not None) is is_known


def test_names_of_corpora_are_short_and_unique():
    assert short_names(["/a/books", "/b/web/", "s3://c/books"]) == {
        "/a/books": "a/books",
        "/b/web/": "web",
        "s3://c/books": "c/books",
    }


def test_tokens_by_corpus_add_up(real_corpus, tmp_path):
    corpus = real_corpus("byte-bpe")
    text = write_text(tmp_path / "text", documents=200)
    other = build(text, tmp_path / "other", "gpt2", tokenizer=corpus / "tokenizer")
    run = tmp_path / "run"
    mix = f"data.mix={{{corpus}: 3, {other}: 1}}"
    megaptm("train", *arguments("gpt2", run, corpus, "train.steps=4", "train.validate_batches=1"), mix)
    records = {record["step"]: record for record in read_metrics(run) if "tokens" in record}
    last = records[4]
    by_corpus = {name: value for name, value in last.items() if name.startswith("tokens/")}
    assert sum(by_corpus.values()) == last["tokens"] == 4 * 12 * 32
    assert by_corpus.keys() == {f"tokens/{corpus.name}", "tokens/other"}
    assert by_corpus[f"tokens/{corpus.name}"] > by_corpus["tokens/other"] > 0
    assert [step for step, record in records.items() if "seconds_left" in record] == [3, 4]
