"""Validation sets: named corpora, and each corpus of the mix by itself."""

import json
from math import inf

import pytest

from megaptm.checkpoint.committed import read_newest_state
from megaptm.config import load_config
from megaptm.errors import UserError
from megaptm.run.corpora import RunCorpora
from megaptm.track import read_metrics
from tests.bad_input.commands import user_error
from tests.drills.program import arguments, checkpoints, losses
from tests.forked import megaptm
from tests.train.runs import build, write_text

STEPS = 4
OPTIONS = (
    *(f"train.steps={STEPS}", "train.validate_every=2", "optimizer.warmup_steps=0", "optimizer.decay=constant"),
    *("model.dropout=0.0", "checkpoint.keep=9"),
)
INFINITE = """
import megaptm
from megaptm.train import loop

mean_losses = loop.mean_losses


class Infinite(megaptm.Callback):
    def on_run_start(self, run):
        self.num_sets = 0
        loop.mean_losses = self.mean_losses

    def mean_losses(self, engine, batches):
        self.num_sets += 1
        means = mean_losses(engine, batches)
        return means if self.num_sets % 4 else dict.fromkeys(means, float("inf"))
"""
EACH = "data.validate_each=true"


class Runs:
    """Runs on two corpora of a mix, and a third one that is only validated."""

    def __init__(self, folder):
        self.folder, self.corpora = folder, [folder / name for name in ("books", "web", "news")]
        for seed, corpus in enumerate(self.corpora):
            text = write_text(folder / f"text-{seed}", documents=200, seed=seed)
            build(text, corpus, "bert", tokenizer=self.corpora[0] / "tokenizer" if seed else None)
        books, web, news = map(str, self.corpora)
        self.mix = f"data.mix={json.dumps({books: 1, web: 2})}"
        self.news = {"news": {"corpus": news, "split": "train", "batches": 2}}
        self.sets = (EACH, f"data.validation={json.dumps(self.news)}")

    def arguments(self, name, *more, family="bert"):
        objective = ["objective=masked-lm"] if family == "bert" else []
        return arguments(family, self.folder / name, self.corpora[0], *OPTIONS, *objective, self.mix, *more)

    def train(self, name, *more, code=0, family="bert"):
        megaptm("train", *self.arguments(name, *more, family=family), code=code)
        return self.folder / name


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("sets"))


@pytest.fixture(scope="module")
def full_run(runs):
    return runs.train("full", *runs.sets)


def validations(run):
    """Return step -> validation metrics of a run."""
    return {
        record["step"]: {key: value for key, value in record.items() if key.startswith("validation/")}
        for record in read_metrics(run)
        if "validation/loss" in record
    }


def test_each_set_has_a_loss(full_run):
    assert [*validations(full_run)] == [2, STEPS]
    names = {"validation/loss", "validation/books/loss", "validation/web/loss", "validation/news/loss"}
    assert all(names == {*metrics} for metrics in validations(full_run).values())
    assert len({*validations(full_run)[STEPS].values()}) == len(names)


@pytest.mark.parametrize("layout", ["layout.tensor=2", "layout.data=2"])
def test_losses_are_equal_on_every_layout(runs, full_run, layout):
    run = runs.train(f"on-{layout}", *runs.sets, layout)
    for step, metrics in validations(full_run).items():
        assert validations(run)[step] == pytest.approx(metrics, rel=1e-5)


def test_sets_do_not_change_training(runs, full_run):
    without = runs.train("without")
    assert losses(without) == losses(full_run)
    assert {step: metrics["validation/loss"] for step, metrics in validations(full_run).items()} == {
        step: metrics["validation/loss"] for step, metrics in validations(without).items()
    }


def test_set_has_its_own_interval_and_is_measured_at_the_end(runs, full_run):
    run = runs.train("interval", *runs.sets, "train.validate_every=1", "data.validation.news.every=3")
    measured = validations(run)
    assert [step for step, metrics in measured.items() if "validation/news/loss" in metrics] == [3, STEPS]
    assert [step for step, metrics in measured.items() if "validation/books/loss" in metrics] == [1, 2, 3, STEPS]
    assert measured[STEPS] == validations(full_run)[STEPS]


def test_resumed_run_has_the_same_losses(runs, full_run):
    runs.train("resumed", *runs.sets, "train.stop_at=3", code=75)
    run = runs.train("resumed", *runs.sets)
    assert validations(run) == validations(full_run)


def test_set_of_a_corpus_is_its_own_validation(runs):
    path, *overrides = runs.arguments("samples", *runs.sets)
    sets = RunCorpora(load_config(path, overrides)).validation_mixes()
    alone = RunCorpora(load_config(path, [*overrides, f"data.mix={{{runs.corpora[1]}: 1}}"])).mix("validation")
    assert {*sets} == {"books", "web", "news"}
    for index in range(5):
        expected = alone.sample(index)
        assert all((sets["web"].sample(index)[name] == field).all() for name, field in expected.items())


def test_phase_has_sets_of_its_own(runs):
    phases = [{"until": 2}, {"data.validation": runs.news, "data.sequence": 16}]
    run = runs.train("phases", EACH, f"phases={json.dumps(phases)}")
    of_mix = {"validation/loss", "validation/books/loss", "validation/web/loss"}
    assert {step: {*metrics} for step, metrics in validations(run).items()} == {
        2: of_mix,
        STEPS: of_mix | {"validation/news/loss"},
    }


def test_recurrent_state_is_not_shared_between_sets(runs):
    """With a rate of almost 0 all validations are equal, and that of the mix is as without sets."""
    options = ("optimizer.lr=1e-30", "model.vocabulary=512")
    corpora = [runs.folder / name for name in ("bytes-books", "bytes-web")]
    for seed, corpus in enumerate(corpora):
        text = runs.folder / f"text-{seed}"
        build(text, corpus, "transformer-xl-bytes", tokenizer=corpora[0] / "tokenizer" if seed else None)
    mix = f"data.mix={json.dumps(dict.fromkeys(map(str, corpora), 1))}"
    run, without = (
        runs.train(name, *options, mix, *more, family="transformer-xl-bytes")
        for name, more in (("lanes", [EACH]), ("lanes-without", []))
    )
    first, last = validations(run).values()
    assert first == last
    assert len({*first.values()}) == 3
    assert first["validation/loss"] == validations(without)[2]["validation/loss"]


def test_best_checkpoint_by_a_set(runs):
    keep = "checkpoint.keep={last: 1, best: {count: 1, metric: validation/news/loss}}"
    options = ("train.validate_every=1", "checkpoint.every=1", "optimizer.lr=0.3", keep)
    run = runs.train("best", *runs.sets, *options)
    values = {step: metrics["validation/news/loss"] for step, metrics in validations(run).items()}
    assert checkpoints(run) == sorted({min(values, key=values.get), STEPS})


def test_early_stopping_by_a_set(runs):
    stop = "train.stop={metric: validation/news/loss, patience: 1, min_delta: 100.0}"
    run = runs.train("stopped", *runs.sets, "train.validate_every=1", stop)
    assert checkpoints(run) == [2]


def test_infinite_loss_of_a_set_is_only_reported(runs, full_run, tmp_path, monkeypatch):
    (tmp_path / "infinite.py").write_text(INFINITE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    keep = "checkpoint.keep.best={count: 1, metric: validation/news/loss}"
    run = runs.train("infinite", *runs.sets, keep, "callbacks=[infinite:Infinite]")
    assert {metrics["validation/news/loss"] for metrics in validations(run).values()} == {inf}
    assert losses(run) == losses(full_run)
    assert read_newest_state(run)["held_out"]["losses"].keys() == {
        "loss",
        "mlm",
        "books/loss",
        "books/mlm",
        "web/loss",
        "web/mlm",
    }


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            ["data.validation={a/b: {corpus: a}}"],
            "data.validation: the name 'a/b' may have letters, digits, _ and - only",
        ),
        (["data.validation={loss: {corpus: a}}"], "data.validation.loss: the validation set loss has the name of a"),
        (
            ["train.stop={metric: validation/new/loss, patience: 1}"],
            "train.stop.metric (validation/new/loss) names no validation set of data.validation; did you mean news?",
        ),
        (
            ["checkpoint.keep.best.metric=validation/a/loss"],
            "checkpoint.keep.best.metric (validation/a/loss) names no validation set",
        ),
        (["data.validation.news.split=test"], "data.validation.news.split must be"),
        (
            ["data.validation.news.every=3"],
            "data.validation.news.every (3) must be a multiple of train.validate_every (2)",
        ),
        (
            [
                *("data.validation.news.every=4", "checkpoint.every=2"),
                "checkpoint.keep.best={count: 1, metric: validation/news/loss}",
            ],
            "so that checkpoint.every (2) must be a multiple of data.validation.news.every (4)",
        ),
        (
            ["phases=[{until: 2}, {data.validation: {}, train.stop: {metric: validation/news/loss, patience: 1}}]"],
            "after",
        ),
    ],
)
def test_mistakes_have_a_sentence(runs, more, sentence):
    assert sentence in user_error("train", *runs.arguments("wrong", *runs.sets, *more))


def test_set_without_a_batch_is_named(runs):
    path, *overrides = runs.arguments("small", *runs.sets, "train.batch=3000", "layout.microbatch=1")
    with pytest.raises(UserError, match="validation set books: the validation split has "):
        RunCorpora(load_config(path, overrides)).validation_mixes()


def test_missing_corpus_of_a_set_is_named(runs):
    words = runs.arguments("missing", f"data.validation={{news: {{corpus: {runs.folder / 'nothing'}}}}}")
    output = user_error("train", *words)
    assert f"megaptm corpus build TEXT out={runs.folder / 'nothing'}" in output
    assert f"tokenizer={runs.corpora[0] / 'tokenizer'}" in output


def test_set_with_another_tokenizer_is_refused(runs):
    build(runs.folder / "text-2", runs.folder / "other", "gpt2")
    words = runs.arguments("foreign", f"data.validation={{news: {{corpus: {runs.folder / 'other'}}}}}")
    assert "was made with another tokenizer than" in user_error("train", *words)
