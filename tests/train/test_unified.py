"""A run that reads texts, images and both: each step is of one task; stopped, and on two data ranks, it is the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_pipeline.annotate.meanings import read_meanings, write_meanings
from megaptm.inference.loaded_model import load_model
from megaptm.tokenizers import load as load_tokenizer
from megaptm.track import read_metrics
from tests.data_pipeline.images.region_corpora import TOKENIZERS, region_corpus
from tests.drills.program import losses, resumed_at
from tests.forked import megaptm

CONFIGS = Path(__file__).parents[2] / "configs/unimo"
SMALL = (
    *("model.layers=2", "model.width=32", "model.ffn=64", "train.batch=8", "layout.microbatch=4", "train.steps=14"),
    *("train.validate_every=14", "train.validate_batches=1", "train.log_every=1", "train.threads=1"),
    *("data.workers=0", "checkpoint.every=1000", "track.enabled=false", "model.dropout=0.0"),
)


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    place = tmp_path_factory.mktemp("unified")
    region_corpus(place / "corpus", images=120, tokenizer=TOKENIZERS["unimo"], validation=0.3)
    write_meanings(
        read_meanings(CONFIGS / "shapes.tsv"), load_tokenizer(place / "corpus/tokenizer"), place / "meanings.json"
    )
    told = (CONFIGS / "tiny.yaml").read_text().replace("corpora/shapes.json", str(place / "meanings.json"))
    (place / "tiny.yaml").write_text(told.replace("../defaults.yaml", str(CONFIGS.parent / "defaults.yaml")))

    def run(name, *more, code=0):
        words = [place / "tiny.yaml", f"run={place / name}", f"data.mix={{{place / 'corpus'}: 1}}", *SMALL, *more]
        megaptm("train", *words, code=code)
        return place / name

    return run


@pytest.fixture(scope="module")
def whole(train):
    return train("whole")


def test_each_step_is_of_one_task(whole):
    records = [record for record in read_metrics(whole) if "loss" in record]
    assert [record["step"] for record in records] == [*range(1, 15)]
    seen = [{name.removeprefix("loss/") for name in record if name.startswith("loss/")} for record in records]
    assert all(len(names) == 1 for names in seen)
    assert {"mlm", "cmcl"} <= {name for names in seen for name in names} <= {"mlm", "mrfr", "mrc-kl", "cmcl"}


def test_a_run_that_was_stopped_is_the_same_run(train, whole):
    train("cut", "train.stop_at=5", code=75)
    cut = train("cut")
    assert resumed_at(cut) == [5]
    assert losses(cut) == losses(whole)


def test_two_data_ranks_make_the_same_run(train, whole):
    two = losses(train("on-2", "layout.data=2"))
    assert two == {step: pytest.approx(loss, rel=1e-4) for step, loss in losses(whole).items()}


def test_hidden_words_are_measured_and_texts_have_vectors(whole):
    model = load_model(whole)
    assert {*model.evaluate().losses} == {"mlm"}
    assert model.encode(["a red circle"]).shape == (1, 32)
