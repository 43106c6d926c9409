"""Run in two phases: other sequence length (BERT), other dropout (BART)."""

import json
import shutil

import pytest

from megaptm.config import load_config
from megaptm.errors import UserError
from megaptm.launch.slurm.preflight import preflight
from megaptm.track import read_metrics
from tests.bad_input.commands import content, user_error
from tests.drills.program import arguments, losses, resumed_at
from tests.forked import megaptm

SCHEDULE = ("optimizer.warmup_steps=1", "optimizer.decay=linear", "optimizer.decay_steps=8", "model.dropout=0.1")
FIRST = ("data.sequence=16", "train.steps=4")
SECOND = (
    *("data.sequence=32", "model.dropout=0.0", "model.attention.dropout=false", "train.steps=8"),
    "train.phase_start=4",
)
BATCH = 12


class Runs:
    """Runs of one tiny BERT; `first_phase` is a finished first phase."""

    def __init__(self, folder, corpus):
        self.folder, self.corpus = folder, corpus
        self.first_phase = self.train("begun", *FIRST)

    def words(self, name, *more):
        return arguments("bert", self.folder / name, self.corpus, *SCHEDULE, *more)

    def train(self, name, *more, code=0):
        megaptm("train", *self.words(name, *more), code=code)
        return self.folder / name

    def copy(self, name):
        shutil.copytree(self.first_phase, self.folder / name)
        return name


@pytest.fixture(scope="module")
def runs(real_corpus, tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("phases"), real_corpus("wordpiece"))


@pytest.fixture(scope="module")
def second(runs):
    return runs.train(runs.copy("second"), *SECOND)


def read_positions(run, step):
    manifest = run / f"checkpoints/step-{step:08d}/manifest.json"
    return json.loads(manifest.read_text())["state"]["read"]


def column(run, name):
    return {record["step"]: record[name] for record in read_metrics(run) if name in record}


def test_two_equal_phases_are_bit_identical_to_one(runs):
    """With equal sequence lengths both phases equal one uninterrupted run."""
    uninterrupted = runs.train("whole", "data.sequence=16", "train.steps=8")
    phases = runs.train(runs.copy("same-rows"), "data.sequence=16", "train.steps=8", "train.phase_start=4")
    assert resumed_at(phases) == [4]
    assert losses(phases) == losses(uninterrupted)
    assert column(phases, "learning_rate") == column(uninterrupted, "learning_rate")


def test_second_phase_has_its_own_sequence_length(runs, second):
    assert column(second, "samples") == {step: BATCH * step for step in range(1, 9)}
    state = json.loads((second / "checkpoints/step-00000008/manifest.json").read_text())["state"]
    assert (state["samples"], state["config"]["data"]["sequence"]) == (8 * BATCH, 32)


def test_second_phase_continues_the_epoch(runs, second):
    """The share of the epoch that the first phase read counts as read, in sequences of the second."""
    [(read, per_epoch)] = read_positions(runs.first_phase, 4).values()
    [(later, longer)] = read_positions(second, 8).values()
    assert (read, longer < 0.6 * per_epoch) == (4 * BATCH, True)
    assert later == read // per_epoch * longer + read % per_epoch * longer // per_epoch + 4 * BATCH


def test_second_phase_resume_is_bit_identical(runs, second):
    cut = runs.copy("cut")
    runs.train(cut, *SECOND, "train.stop_at=6", code=75)
    run = runs.train(cut, *SECOND)
    assert resumed_at(run) == [4, 6]
    assert losses(run) == losses(second)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            ["data.sequence=32", "train.steps=8"],
            "data.sequence is 32 but the run in {} was started with 16",
        ),
        (
            [*SECOND, "train.phase_start=6"],
            "train.phase_start (6): the run in {} has 4 steps; first train the previous phase",
        ),
        ([*SECOND, "model.layers=1"], "model.layers is 1 but the run in {} was started with"),
        (["train.steps=4", "train.phase_start=4"], "train.phase_start (4) must be less than train.steps (4)"),
    ],
)
def test_invalid_phase_is_refused_and_changes_nothing(runs, more, sentence):
    before = content(runs.first_phase)
    assert sentence.format(runs.first_phase) in user_error("train", *runs.words("begun", *more))
    assert content(runs.first_phase) == before


def test_second_phase_without_the_first_is_refused(runs):
    assert "has 0 steps; first train the previous phase to its end." in user_error(
        "train", *runs.words("nothing", *SECOND)
    )
    assert not (runs.folder / "nothing").exists()


def test_slurm_preflight_refuses_an_invalid_phase(runs):
    path, *overrides = runs.words("nothing", *SECOND)
    with pytest.raises(UserError, match=r"train\.phase_start \(4\): the run in .* has 0 steps"):
        preflight(load_config(path, overrides), attempt="1.0", tasks=1)


def test_first_phase_after_the_second_is_refused(runs, second):
    output = megaptm("train", *runs.words("second", *FIRST), code=2)
    assert f"3 keys differ from the config that the run in {second} was started with" in output
    assert "data.sequence is 16, was 32" in output


def test_all_changed_keys_are_listed(runs):
    before = content(runs.first_phase)
    output = megaptm("train", *runs.words("begun", *SECOND, "train.phase_start=3"), code=2)
    assert (
        "data.sequence is 32, was 16\n  model.attention.dropout is False, was True\n  model.dropout is 0.0, was 0.1\n"
        "  train.phase_start is 3, was 0"
    ) in output
    assert content(runs.first_phase) == before
