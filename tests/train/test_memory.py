"""Run of a model with a recurrence cache: resume on the same and on other data ranks."""

import json

import pytest

from megaptm.track import read_metrics
from tests.bad_input.commands import user_error
from tests.drills.program import arguments, losses, resumed_at
from tests.forked import megaptm

FAMILY = "transformer-xl-bytes"
SHORT = (
    *("data.sequence=16", "model.memory=24", "model.dropout=0.1", "train.steps=6", "train.batch=8"),
    *("optimizer.lr=0.02", "optimizer.warmup_steps=1"),
)
ALONE = ("layout.data=1", "layout.microbatch=4")
TWO = ("layout.data=2", "layout.microbatch=2")


@pytest.fixture(scope="module")
def runs(real_corpus, tmp_path_factory):
    folder, corpus = tmp_path_factory.mktemp("memory"), real_corpus("byte-bpe")

    def words(name, *more):
        return arguments(FAMILY, folder / name, corpus, *SHORT, *more)

    def train(name, *more, code=0):
        megaptm("train", *words(name, *more), code=code)
        return folder / name

    train.words = words
    return train


@pytest.fixture(scope="module")
def uninterrupted(runs):
    return runs("whole", *ALONE)


def loss_per_step(run):
    """Return the loss of each step."""
    return [loss for [loss] in losses(run).values()]


def test_recurrence_cache_resume_is_bit_identical(runs, uninterrupted):
    runs("cut", *ALONE, "train.stop_at=3", code=75)
    cut = runs("cut", *ALONE)
    assert resumed_at(cut) == [3]
    assert losses(cut) == losses(uninterrupted)


def test_recurrence_cache_resumes_on_other_data_ranks(runs, uninterrupted):
    more = ("model.dropout=0.0",)
    alone = runs("alone", *ALONE, *more)
    runs("dealt", *ALONE, *more, "train.stop_at=3", code=75)
    on_two_ranks = runs("dealt", *TWO, *more)
    assert resumed_at(on_two_ranks) == [3]
    assert loss_per_step(on_two_ranks) == pytest.approx(loss_per_step(alone), rel=1e-5)
    forgetful = loss_per_step(runs("forgetful", *ALONE, *more, "model.memory=0"))
    assert forgetful[0] == loss_per_step(alone)[0]
    assert max(abs(a / b - 1) for a, b in zip(forgetful[4:], loss_per_step(alone)[4:], strict=True)) > 1e-3


def test_checkpoint_has_the_recurrence_cache_of_each_sample(uninterrupted):
    index = json.loads((uninterrupted / "checkpoints/step-00000006/index-00000.json").read_text())
    [shape] = {
        tuple(tensor["shape"])
        for file in index["files"]
        for tensor in file["tensors"]
        if tensor["name"] == "memory/decoder.0"
    }
    assert shape[:2] == (8, 24)
    assert [record["samples"] for record in read_metrics(uninterrupted) if "samples" in record] == [
        8 * n for n in range(1, 7)
    ]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["objective=causal-lm", "data.document_mask=false"], "do not continue from step to step: set model.memory=0"),
        (["data.document_mask=true"], "set data.document_mask=false"),
        (["train.ramp={steps: {0: 4, 2: 8}}"], "train.ramp changes the number of sequences in a batch"),
        (["data.cursors={step: 3, sample: 9}"], "data.cursors continues other data"),
        (["train.batch=80000"], "lower train.batch"),
    ],
)
def test_config_without_continued_samples_is_refused(runs, more, sentence):
    assert sentence in user_error("train", *runs.words("refused", *ALONE, *more))


def test_continued_samples_need_a_recurrence_cache(runs, real_corpus, tmp_path):
    words = arguments("gpt2", tmp_path / "gpt2", real_corpus("byte-bpe"), "objective=continued-causal-lm")
    assert "this family has no recurrence cache" in user_error("train", *words)
