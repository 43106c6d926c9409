"""Run on image regions (UNITER): one task per step, resume, two data ranks."""

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
TASKS = ({"itm", "wra"}, {"mlm"}, {"mrfr"}, {"mrc-kl"})


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    folder = tmp_path_factory.mktemp("regions")
    region_corpus(folder / "corpus", images=120, tokenizer=TOKENIZERS["uniter"], validation=0.3)

    def run(name, *more, code=0):
        words = [CONFIG, f"run={folder / name}", f"data.mix={{{folder / 'corpus'}: 1}}", *SMALL, *more]
        megaptm("train", *words, code=code)
        return folder / name

    return run


@pytest.fixture(scope="module")
def uninterrupted(train):
    return train("whole")


def test_each_step_has_one_task(uninterrupted):
    records = [record for record in read_metrics(uninterrupted) if "loss" in record]
    assert [record["step"] for record in records] == [*range(1, 13)]
    losses_by_step = [{name.removeprefix("loss/") for name in record if name.startswith("loss/")} for record in records]
    assert all(names in TASKS for names in losses_by_step)
    assert sum(task in losses_by_step for task in TASKS) > 2  # twelve steps need not contain all four tasks
    for record, names in zip(records, losses_by_step, strict=True):
        if names == {"itm", "wra"}:
            assert record["loss"] == pytest.approx(record["loss/itm"] + 0.1 * record["loss/wra"], rel=1e-5)


def test_uniter_resume_is_bit_identical(train, uninterrupted):
    train("cut", "train.stop_at=5", code=75)
    cut = train("cut")
    assert resumed_at(cut) == [5]
    assert losses(cut) == losses(uninterrupted)


def test_uniter_losses_are_the_same_on_two_data_ranks(train):
    """Without dropout, which differs between data ranks."""
    alone, divided = (losses(train(f"on-{ranks}", "model.dropout=0.0", f"layout.data={ranks}")) for ranks in (1, 2))
    assert divided == {step: pytest.approx(loss, rel=1e-4) for step, loss in alone.items()}


def test_uniter_classification_losses_are_evaluated(uninterrupted):
    evaluated = load_model(uninterrupted).evaluate().losses
    assert {*evaluated} == {"mlm", "itm"}
    assert evaluated["itm"].num_labels > 0
