"""How often text may be read is settled before the first step."""

import os
import re
import shutil
import signal
import sys

import pytest
from click.testing import CliRunner
from torch.utils.data import DataLoader, Dataset, _utils

from megaptm.config import dump, load
from megaptm.data import Corpus
from megaptm.errors import EXIT_FAILURE, EXIT_USER_ERROR, UserError
from megaptm.resilience.events import read_events
from megaptm.resilience.failures import MAPPED
from megaptm.run.corpora import RunCorpora, check_corpora
from megaptm.run.folder import CONFIG
from megaptm.train import lost_loader, worker
from megaptm.train.lost_loader import why_lost
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
        f"train.steps ({most + 1}) is more than the {most} steps that data.mix has text for when none is read more "
        "than 2 times (data.epochs): lower train.steps, raise data.epochs, or leave data.epochs out."
    )


def test_a_loader_that_a_shard_cut_short_has_ended_names_the_shard(corpus, tmp_path):
    """torch speaks of shared memory."""
    shutil.copytree(corpus, tmp_path / "corpus")
    asked = config(tmp_path / "corpus", "data.verify=size")
    (tmp_path / CONFIG).write_text(dump(asked))
    said = "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's workers are out"
    assert why_lost(said, tmp_path) == (
        f"a process that reads this rank's data was lost (signal: Bus error): {MAPPED}.",
        EXIT_FAILURE,
    )
    os.truncate(tmp_path / "corpus/train-000000.tar", 1000)
    sentence, code = why_lost(said, tmp_path)
    assert re.match(r".*train-000000\.tar has 1,000 bytes where the manifest says", sentence)
    assert code == EXIT_USER_ERROR


@pytest.mark.parametrize(
    ("ended", "causes"),
    [
        ("is killed by signal: Killed. ", (True, False)),
        ("exited with code 3", (False, True)),
        ("exited unexpectedly", (False, True)),
        (f"exited unexpectedly {lost_loader.KILLED}", (True, False)),
    ],
)
def test_causes_are_told_of_how_it_ended(ended, causes, tmp_path):
    sentence, code = why_lost(f"DataLoader worker (pid 7) {ended}", tmp_path)
    assert ("the machine was out of memory" in sentence, "see what it wrote above" in sentence) == causes
    assert code == EXIT_FAILURE


class Unheard(Dataset):
    """Its process is killed, or ends itself."""

    def __len__(self):
        return 4

    def __getitem__(self, number):
        if number:
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(3)


@pytest.mark.parametrize(("number", "killed"), [(1, True), (0, False)])
def test_a_loader_that_torch_knows_only_as_lost_is_looked_at(number, killed, monkeypatch):
    """As where the rank misses the data before it hears of the process."""
    monkeypatch.setattr(_utils.signal_handling, "_set_SIGCHLD_handler", lambda: None)
    with pytest.raises(RuntimeError, match="exited unexpectedly") as caught:
        next(iter(DataLoader(Unheard(), sampler=[number], num_workers=1, timeout=1)))
    assert lost_loader.was_killed(caught.value) == killed


def test_what_is_said_of_a_lost_loader_begins_a_line(monkeypatch, tmp_path):
    """torch raises it wherever the rank is, also in the midst of what it prints."""

    def lose(run):
        print("step 5/8  loss 0.7  0:01 left", end="")
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")

    monkeypatch.setattr("megaptm.train.run.run_worker", lose)
    for name in ("outlive_terminal", "collect_garbage_rarely"):
        monkeypatch.setattr(worker, name, lambda: None)
    monkeypatch.setattr(lost_loader, "end_now", lambda code, handlers: sys.exit(code))
    said = CliRunner().invoke(worker.main, ["--run", str(tmp_path)])
    assert (said.exit_code, said.output.count("\nerror: a process that reads this rank's data was lost")) == (1, 1)


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
        assert f"step {step}/{third}  epoch {epoch} of {corpus} begins\n" in said
    assert resumed_at(run) == [second + 1]
