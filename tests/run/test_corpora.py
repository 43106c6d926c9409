"""Corpora of a run: epochs, and workers that die."""

import os
import re
import shutil
import signal

import pytest

from megaptm.config import load_config
from megaptm.data import Corpus
from megaptm.data.loader import Loader, LostWorkerError
from megaptm.errors import EXIT_FAILURE, EXIT_USER_ERROR, UserError
from megaptm.resilience.events import read_events
from megaptm.resilience.failures import BUS_ERROR_CAUSE
from megaptm.run.corpora import RunCorpora
from megaptm.run.corpora_checks import check_corpora
from megaptm.train.lost_loader import explain_lost_worker
from tests.drills.program import resumed_at
from tests.forked import megaptm
from tests.train.runs import build, settings, write_text


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpora")
    return build(write_text(folder / "text", documents=12), folder / "corpus", "gpt2")


def config(corpus, *more):
    path, *overrides = settings("gpt2", corpus.with_name("run"), corpus, "train.batch=4", *more)
    return load_config(path, overrides)


def test_more_steps_than_max_epochs_are_refused(corpus):
    mix = RunCorpora(config(corpus)).mix("train")
    max_steps = mix.samples_in(2) // 4
    check_corpora(config(corpus, "data.epochs=2", f"train.steps={max_steps}"))
    check_corpora(config(corpus, f"train.steps={1000 * max_steps}"))
    with pytest.raises(UserError) as caught:
        check_corpora(config(corpus, "data.epochs=2", f"train.steps={max_steps + 1}"))
    assert str(caught.value) == (
        f"train.steps ({max_steps + 1}) is more than {max_steps}, the steps for which data.mix has text in 2 "
        "epochs (data.epochs): lower train.steps, raise data.epochs, or leave data.epochs out."
    )


def test_phase_needs_text_for_its_own_steps(corpus):
    max_steps = RunCorpora(config(corpus)).mix("train").samples_in(1) // 4

    def check(first):
        phases = f"phases=[{{until: {first}}}, {{data.epochs: 9}}]"
        check_corpora(config(corpus, "data.epochs=1", f"train.steps={max_steps + 9}", phases))

    check(max_steps)
    with pytest.raises(UserError, match=r"`until` of a phase .* is more than"):
        check(max_steps + 1)


def test_worker_killed_by_a_truncated_shard_names_the_shard(corpus, tmp_path):
    shutil.copytree(corpus, tmp_path / "corpus")
    run_config = config(tmp_path / "corpus", "data.verify=size")
    lost = LostWorkerError(7, -signal.SIGBUS)
    error = explain_lost_worker(lost, run_config)
    assert str(error) == f"data loader worker 7 died (signal 7, Bus error): {BUS_ERROR_CAUSE}."
    assert error.exit_code == EXIT_FAILURE
    os.truncate(tmp_path / "corpus/train-000000.tar", 1000)
    error = explain_lost_worker(lost, run_config)
    assert re.match(r".*train-000000\.tar has 1,000 bytes where the manifest says", str(error))
    assert error.exit_code == EXIT_USER_ERROR


@pytest.mark.parametrize(
    ("code", "cause"), [(-signal.SIGKILL, "the machine ran out of memory"), (3, "see its output above")]
)
def test_lost_worker_error_names_the_cause(code, cause, corpus):
    error = explain_lost_worker(LostWorkerError(7, code), config(corpus))
    assert cause in str(error)
    assert error.exit_code == EXIT_FAILURE


@pytest.mark.parametrize(
    ("end", "code"), [(lambda: os.kill(os.getpid(), signal.SIGKILL), -9), (lambda: os._exit(3), 3)]
)
def test_lost_worker_raises_only_in_the_loader(corpus, monkeypatch, end, code):
    mix = RunCorpora(config(corpus)).mix("train")
    monkeypatch.setattr(type(mix), "sample", lambda self, number: end())
    handler = signal.getsignal(signal.SIGCHLD)
    with Loader(mix, batch=1, microbatch=1, workers=1) as loader:
        assert signal.getsignal(signal.SIGCHLD) == handler
        with pytest.raises(LostWorkerError) as caught:
            next(loader)
    assert caught.value.exit_code == code


def test_each_corpus_is_opened_once(corpus, monkeypatch):
    opened, open_corpus = [], Corpus.open
    monkeypatch.setattr(Corpus, "open", lambda path, cache: opened.append(path) or open_corpus(path, cache))
    check_corpora(config(corpus))
    assert opened == [str(corpus)]


def test_resume_in_the_second_epoch(corpus, tmp_path):
    """Each epoch is reported once at its start, also by a resumed job."""
    run_config, run = config(corpus), tmp_path / "run"
    mix = RunCorpora(run_config).mix("train")
    second, third = (mix.samples_in(epochs) // 4 + 1 for epochs in (1, 2))
    words = settings("gpt2", run, corpus, "train.batch=4", "train.threads=1", "data.workers=0", "checkpoint.every=1000")
    stopped = megaptm("train", *words, f"train.steps={third}", f"train.stop_at={second + 1}", code=75)
    ended = megaptm("train", *words, f"train.steps={third}")
    events = [event for event in read_events(run) if event["kind"] == "epoch"]
    assert [(event["corpus"], event["epoch"], event["step"]) for event in events] == [
        (str(corpus), 2, second),
        (str(corpus), 3, third),
    ]
    for step, epoch, output in ((second, 2, stopped), (third, 3, ended)):
        assert output.count("  epoch ") == 1
        assert f"step {step}/{third}  epoch {epoch} of {corpus} starts\n" in output
    assert resumed_at(run) == [second + 1]
