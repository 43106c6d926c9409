"""Run on texts, images and pairs (UNIMO): one task per step, resume, two data ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from megaptm.families.unimo.corpus.meanings import read_meanings, write_meanings
from megaptm.inference.loaded_model import load_model
from megaptm.tokenizers import load_tokenizer
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
    folder = tmp_path_factory.mktemp("unified")
    region_corpus(folder / "corpus", images=120, tokenizer=TOKENIZERS["unimo"], validation=0.3)
    write_meanings(
        read_meanings(CONFIGS / "shapes.tsv"), load_tokenizer(folder / "corpus/tokenizer"), folder / "meanings.json"
    )
    config_text = (CONFIGS / "tiny.yaml").read_text().replace("corpora/shapes.json", str(folder / "meanings.json"))
    (folder / "tiny.yaml").write_text(config_text.replace("../defaults.yaml", str(CONFIGS.parent / "defaults.yaml")))

    def run(name, *more, code=0):
        words = [folder / "tiny.yaml", f"run={folder / name}", f"data.mix={{{folder / 'corpus'}: 1}}", *SMALL, *more]
        megaptm("train", *words, code=code)
        return folder / name

    return run


@pytest.fixture(scope="module")
def uninterrupted(train):
    return train("whole")


def test_each_step_has_one_task(uninterrupted):
    records = [record for record in read_metrics(uninterrupted) if "loss" in record]
    assert [record["step"] for record in records] == [*range(1, 15)]
    losses_by_step = [{name.removeprefix("loss/") for name in record if name.startswith("loss/")} for record in records]
    assert all(len(names) == 1 for names in losses_by_step)
    assert {"mlm", "cmcl"} <= {name for names in losses_by_step for name in names} <= {"mlm", "mrfr", "mrc-kl", "cmcl"}


def test_unimo_resume_is_bit_identical(train, uninterrupted):
    train("cut", "train.stop_at=5", code=75)
    cut = train("cut")
    assert resumed_at(cut) == [5]
    assert losses(cut) == losses(uninterrupted)


def test_unimo_losses_are_the_same_on_two_data_ranks(train, uninterrupted):
    two = losses(train("on-2", "layout.data=2"))
    assert two == {step: pytest.approx(loss, rel=1e-4) for step, loss in losses(uninterrupted).items()}


def test_unimo_run_is_evaluated_and_encodes(uninterrupted):
    model = load_model(uninterrupted)
    assert {*model.evaluate().losses} == {"mlm"}
    assert model.encode(["a red circle"]).shape == (1, 32)
