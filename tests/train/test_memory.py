"""A run whose rows go on from step to step: stopped and continued it remembers what it remembered, on as many data
ranks or on others."""

import json

import pytest

from megaptm.track import read_metrics
from tests.bad_input.mistakes import told
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
    place, corpus = tmp_path_factory.mktemp("memory"), real_corpus("byte-bpe")

    def words(name, *more):
        return arguments(FAMILY, place / name, corpus, *SHORT, *more)

    def train(name, *more, code=0):
        megaptm("train", *words(name, *more), code=code)
        return place / name

    train.words = words
    return train


@pytest.fixture(scope="module")
def whole(runs):
    return runs("whole", *ALONE)


def one(run):
    """The loss of each step."""
    return [loss for [loss] in losses(run).values()]


def test_stopped_and_continued_it_is_the_run_that_was_not(runs, whole):
    runs("cut", *ALONE, "train.stop_at=3", code=75)
    cut = runs("cut", *ALONE)
    assert resumed_at(cut) == [3]
    assert losses(cut) == losses(whole)


def test_on_other_data_ranks_each_row_remembers_what_it_read(runs, whole):
    more = ("model.dropout=0.0",)
    alone = runs("alone", *ALONE, *more)
    runs("dealt", *ALONE, *more, "train.stop_at=3", code=75)
    dealt = runs("dealt", *TWO, *more)
    assert resumed_at(dealt) == [3]
    assert one(dealt) == pytest.approx(one(alone), rel=1e-5)
    forgetful = one(runs("forgetful", *ALONE, *more, "model.memory=0"))
    assert forgetful[0] == one(alone)[0]
    assert max(abs(a / b - 1) for a, b in zip(forgetful[4:], one(alone)[4:], strict=True)) > 1e-3


def test_a_checkpoint_has_what_is_remembered_of_each_row(whole):
    manifest = json.loads((whole / "checkpoints/step-00000006/manifest.json").read_text())
    [shape] = {
        tuple(tensor["shape"])
        for file in manifest["files"]
        for tensor in file["tensors"]
        if tensor["name"] == "memory/decoder.0"
    }
    assert shape[:2] == (8, 24)
    assert [record["samples"] for record in read_metrics(whole) if "samples" in record] == [8 * n for n in range(1, 7)]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["objective=causal-lm", "data.document_mask=false"], "do not continue from step to step: set model.memory=0"),
        (["data.document_mask=true"], "set data.document_mask=false"),
        (["train.ramp={steps: {0: 4, 2: 8}}"], "train.ramp changes the number of sequences in a batch"),
        (["train.phase_start=3"], "train.phase_start continues another phase"),
        (["train.batch=80000"], "lower train.batch"),
    ],
)
def test_what_cannot_be_remembered_is_refused(runs, more, sentence):
    assert sentence in told("train", *runs.words("refused", *ALONE, *more))


def test_a_family_that_remembers_nothing_is_refused_rows_that_go_on(runs, real_corpus, tmp_path):
    words = arguments("gpt2", tmp_path / "gpt2", real_corpus("byte-bpe"), "objective=continued-causal-lm")
    assert "this family has no recurrence cache" in told("train", *words)
