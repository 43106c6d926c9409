"""How often text may be read is settled before the first step."""

import os
import re
import shutil
import signal

import pytest

from megaptm.config import load
from megaptm.data import Corpus
from megaptm.data.loader import Loader, LostWorkerError
from megaptm.errors import EXIT_FAILURE, EXIT_USER_ERROR, UserError
from megaptm.resilience.events import read_events
from megaptm.resilience.failures import BUS_ERROR_CAUSE
from megaptm.run.corpora import RunCorpora
from megaptm.run.corpora_checks import check_corpora
from megaptm.train.lost_loader import explain_loss
from tests.drills.program import resumed_at
from tests.forked import megaptm
from tests.train.runs import build, settings, write_text


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    place = tmp_path_factory.mktemp("corpora")
    return build(write_text(place / "text", documents=12), place / "corpus", "gpt2")


def config(corpus, *more):
    path, *overrides = settings("gpt2", corpus.with_name("run"), corpus, "train.batch=4", *more)
    return load(path, overrides)


def test_more_steps_than_the_epochs_hold_are_refused(corpus):
    mix = RunCorpora(config(corpus)).mix("train")
    most = mix.samples_in(2) // 4
    check_corpora(config(corpus, "data.epochs=2", f"train.steps={most}"))
    check_corpora(config(corpus, f"train.steps={1000 * most}"))
    with pytest.raises(UserError) as told:
        check_corpora(config(corpus, "data.epochs=2", f"train.steps={most + 1}"))
    assert str(told.value) == (
        f"train.steps ({most + 1}) is more than {most}, the steps for which data.mix has text in 2 "
        "epochs (data.epochs): lower train.steps, raise data.epochs, or leave data.epochs out."
    )


def test_a_reader_that_an_index_cut_short_has_ended_names_the_shard(corpus, tmp_path):
    shutil.copytree(corpus, tmp_path / "corpus")
    asked = config(tmp_path / "corpus", "data.verify=size")
    lost = LostWorkerError(7, -signal.SIGBUS)
    told = explain_loss(lost, asked)
    assert str(told) == f"data loader worker 7 died (signal 7, Bus error): {BUS_ERROR_CAUSE}."
    assert told.exit_code == EXIT_FAILURE
    os.truncate(tmp_path / "corpus/train-000000.tar", 1000)
    told = explain_loss(lost, asked)
    assert re.match(r".*train-000000\.tar has 1,000 bytes where the manifest says", str(told))
    assert told.exit_code == EXIT_USER_ERROR


@pytest.mark.parametrize(
    ("code", "cause"), [(-signal.SIGKILL, "the machine ran out of memory"), (3, "see its output above")]
)
def test_the_cause_of_a_lost_reader_is_told_by_how_it_ended(code, cause, corpus):
    told = explain_loss(LostWorkerError(7, code), config(corpus))
    assert cause in str(told)
    assert told.exit_code == EXIT_FAILURE


@pytest.mark.parametrize(
    ("end", "code"), [(lambda: os.kill(os.getpid(), signal.SIGKILL), -9), (lambda: os._exit(3), 3)]
)
def test_a_lost_reader_is_told_where_its_data_is_missed_and_nowhere_else(corpus, monkeypatch, end, code):
    mix = RunCorpora(config(corpus)).mix("train")
    monkeypatch.setattr(type(mix), "sample", lambda self, number: end())
    handled_signals = signal.getsignal(signal.SIGCHLD)
    with Loader(mix, batch=1, microbatch=1, workers=1) as loader:
        assert signal.getsignal(signal.SIGCHLD) == handled_signals
        with pytest.raises(LostWorkerError) as caught:
            next(loader)
    assert caught.value.exit_code == code


def test_each_is_opened_once(corpus, monkeypatch):
    opened, really = [], Corpus.open
    monkeypatch.setattr(Corpus, "open", lambda place, cache: opened.append(place) or really(place, cache))
    check_corpora(config(corpus))
    assert opened == [str(corpus)]


def test_a_run_goes_through_epochs_and_resumes_in_the_second(corpus, tmp_path):
    """Each epoch is told once where it begins, also by the job that resumes in its middle."""
    asked, run = config(corpus), tmp_path / "run"
    mix = RunCorpora(asked).mix("train")
    second, third = (mix.samples_in(epochs) // 4 + 1 for epochs in (1, 2))
    words = settings("gpt2", run, corpus, "train.batch=4", "train.threads=1", "data.workers=0", "checkpoint.every=1000")
    stopped = megaptm("train", *words, f"train.steps={third}", f"train.stop_at={second + 1}", code=75)
    ended = megaptm("train", *words, f"train.steps={third}")
    events = [event for event in read_events(run) if event["kind"] == "epoch"]
    assert [(event["corpus"], event["epoch"], event["step"]) for event in events] == [
        (str(corpus), 2, second),
        (str(corpus), 3, third),
    ]
    for step, epoch, said in ((second, 2, stopped), (third, 3, ended)):
        assert said.count("  epoch ") == 1
        assert f"step {step}/{third}  epoch {epoch} of {corpus} starts\n" in said
    assert resumed_at(run) == [second + 1]
