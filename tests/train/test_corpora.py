"""How often text may be read is settled before the first step."""

import pytest

from megaptm.config import load
from megaptm.errors import UserError
from megaptm.train.corpora import check_corpora, corpus_tokenizer, open_corpora
from megaptm.train.reporting import StepReport
from tests.train.runs import build, settings, write_text


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    place = tmp_path_factory.mktemp("corpora")
    return build(write_text(place / "text"), place / "corpus", "gpt2")


def config(corpus, *more):
    path, *overrides = settings("gpt2", corpus.with_name("run"), corpus, "train.batch=4", *more)
    return load(path, overrides)


def test_more_steps_than_the_epochs_hold_are_refused(corpus):
    mix = open_corpora(config(corpus), corpus_tokenizer(config(corpus)), "train")
    most = mix.samples_in(2) // 4
    check_corpora(config(corpus, "data.epochs=2", f"train.steps={most}"))
    check_corpora(config(corpus, f"train.steps={1000 * most}"))
    with pytest.raises(UserError) as told:
        check_corpora(config(corpus, "data.epochs=2", f"train.steps={most + 1}"))
    assert str(told.value) == (
        f"train.steps ({most + 1}) is more than the {most} steps that data.mix has text for when none is read more "
        "than 2 times (data.epochs): lower train.steps, raise data.epochs, or leave data.epochs out."
    )


class Heard:
    """Events and lines of a report, kept."""

    def __init__(self):
        self.events = []

    def write(self, kind, **fields):
        self.events.append((kind, fields))


def test_an_epoch_that_begins_is_told_once(corpus, tmp_path, capsys):
    asked = config(corpus, f"run={tmp_path}")
    mix = open_corpora(asked, corpus_tokenizer(asked), "train")
    heard = Heard()
    report = StepReport.__new__(StepReport)
    report.__dict__.update(config=asked, mix=mix, events=heard, _screen=_lines(), _epochs=mix.epochs_begun(0))
    second = mix.samples_in(1) // 4 + 1
    for step in range(1, second + 3):
        report._tell_epochs(step)
    assert heard.events == [("epoch", {"step": second, "corpus": str(corpus), "epoch": 2})]
    assert capsys.readouterr().out == f"step {second}/100  epoch 2 of {corpus} begins\n"


def _lines():
    from megaptm.train.reporting import _Lines

    return _Lines(100)
