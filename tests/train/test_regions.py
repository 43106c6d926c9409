"""A run that reads regions of images: each step is of one task; stopped and on two data ranks it is the same run."""

from __future__ import annotations

from pathlib import Path

import pytest

from megaptm.inference.loaded_model import load_model
from megaptm.track import read_metrics
from tests.data_pipeline.images.region_corpora import TOKENIZERS, region_corpus
from tests.drills.program import losses, resumed_at
from tests.forked import megaptm

CONFIG = Path(__file__).parents[2] / "configs/uniter/tiny.yaml"
SMALL = (
    *("model.layers=2", "model.width=32", "model.ffn=64", "train.batch=8", "layout.microbatch=4", "train.steps=12"),
    *("train.validate_every=12", "train.validate_batches=1", "train.log_every=1", "train.threads=1"),
    *("data.workers=0", "checkpoint.every=1000", "track.enabled=false"),
)
OF_A_STEP = ({"itm", "wra"}, {"mlm"}, {"mrfr"}, {"mrc-kl"})


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    place = tmp_path_factory.mktemp("regions")
    region_corpus(place / "corpus", images=120, tokenizer=TOKENIZERS["uniter"], validation=0.3)

    def run(name, *more, code=0):
        words = [CONFIG, f"run={place / name}", f"data.mix={{{place / 'corpus'}: 1}}", *SMALL, *more]
        megaptm("train", *words, code=code)
        return place / name

    return run


@pytest.fixture(scope="module")
def whole(train):
    return train("whole")


def test_each_step_is_of_one_task_and_held_out_rows_of_all(whole):
    records = [record for record in read_metrics(whole) if "loss" in record]
    assert [record["step"] for record in records] == [*range(1, 13)]
    seen = [{name.removeprefix("loss/") for name in record if name.startswith("loss/")} for record in records]
    assert all(one in OF_A_STEP for one in seen)
    assert sum(one in seen for one in OF_A_STEP) > 2  # twelve steps need not have all four
    for record, names in zip(records, seen, strict=True):
        if names == {"itm", "wra"}:
            assert record["loss"] == pytest.approx(record["loss/itm"] + 0.1 * record["loss/wra"], rel=1e-5)


def test_a_run_that_was_stopped_is_the_same_run(train, whole):
    train("cut", "train.stop_at=5", code=75)
    cut = train("cut")
    assert resumed_at(cut) == [5]
    assert losses(cut) == losses(whole)


def test_two_data_ranks_make_the_same_run(train):
    """Without dropout, which each draws for itself."""
    one, two = (losses(train(f"on-{ranks}", "model.dropout=0.0", f"layout.data={ranks}")) for ranks in (1, 2))
    assert two == {step: pytest.approx(loss, rel=1e-4) for step, loss in one.items()}


def test_what_is_a_choice_is_measured(whole):
    found = load_model(whole).evaluate().losses
    assert {*found} == {"mlm", "itm"}
    assert found["itm"].asked > 0
