"""Phases that are planned ahead: equal to the same changes on resume, and bit-identical when resumed."""

import json
import shutil

import pytest

from megaptm.config import load_config
from megaptm.errors import UserError
from megaptm.resilience.events import read_events
from megaptm.run.corpora_checks import check_corpora, positioned_phases
from megaptm.track import read_metrics
from tests.drills.program import arguments, checkpoints, losses, resumed_at
from tests.forked import megaptm
from tests.train.runs import build, write_text

STEPS, BORDERS, STOPPED = 9, (3, 6), 5
OPTIONS = (f"train.steps={STEPS}", "optimizer.warmup_steps=0", "optimizer.decay=constant", "checkpoint.keep=9")


COUNTER = """
import gc

import megaptm
from megaptm.parallel.engine import Engine


class Counter(megaptm.Callback):
    def on_step_end(self, run, result):
        run.log_metrics({"my/engines": sum(isinstance(each, Engine) for each in gc.get_objects())})
"""


def assignments(changes):
    return [f"{key}={json.dumps(value)}" for key, value in changes.items()]


def recorded(run):
    """Return the recorded values of each step that do not depend on time."""
    names = ("step", "loss", "learning_rate", "gradient_norm", "samples", "tokens")
    return [{name: record[name] for name in names} for record in read_metrics(run) if "loss" in record]


def state(run, step=STEPS):
    return json.loads((run / f"checkpoints/step-{step:08d}/manifest.json").read_text())["state"]


class Runs:
    """Runs of one tiny BERT on two corpora."""

    def __init__(self, folder):
        self.folder = folder
        self.corpus, self.other = (folder / f"corpus-{seed}" for seed in range(2))
        build(write_text(folder / "text-0", documents=200), self.corpus, "bert")
        text = write_text(folder / "text-1", documents=200, seed=1)
        build(text, self.other, "bert", tokenizer=self.corpus / "tokenizer")
        self.changes = (
            {
                "data.sequence": 16,
                "data.mix": {str(self.corpus): 1, str(self.other): 3},
                "data.mix_ramp": {"initial": {str(self.corpus): 1}},
                "objective": {"masked-lm": {"rate": 0.4}},
            },
            {"train.batch": 24, "optimizer.decay": "linear", "optimizer.stable_steps": 6, "model.dropout": 0.0},
        )
        entries = [{"until": BORDERS[0]}, {"until": BORDERS[1], **self.changes[0]}, self.changes[1]]
        self.phases = f"phases={json.dumps(entries)}"

    def arguments(self, name, *more):
        options = (*OPTIONS, "objective={masked-lm: {rate: 0.15}}")
        return arguments("bert", self.folder / name, self.corpus, *options, *more)

    def train(self, name, *more, code=0):
        megaptm("train", *self.arguments(name, *more), code=code)
        return self.folder / name

    def by_hand(self, name, *more):
        """Train a run with the same changes on resume."""
        run = self.train(name, *more, f"train.stop_at={BORDERS[0]}", code=75)
        first, second = self.changes
        typed = [*assignments(first), f"data.mix_ramp.steps={[*BORDERS]}"]
        megaptm("train", run, *typed, f"train.stop_at={BORDERS[1]}", "--change", code=75)
        megaptm("train", run, *assignments(second), "train.ramp=null", "train.stop_at=null", "--change")
        return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("phases"))


@pytest.fixture(scope="module")
def planned(runs):
    return runs.train("planned", runs.phases)


def test_planned_phases_equal_changes_on_resume(runs, planned):
    by_hand = runs.by_hand("by-hand")
    assert recorded(planned) == recorded(by_hand)
    for step in (*BORDERS, STEPS):
        assert state(planned, step)["read"] == state(by_hand, step)["read"]
    config, manual = (load_config(run / "config.yaml").model_dump() for run in (planned, by_hand))
    assert {key for key in config if config[key] != manual[key]} == {"run", "phases"}


def test_tokens_are_counted_with_the_length_that_each_sample_had(planned):
    border, end = (record for record in recorded(planned) if record["step"] in (BORDERS[0], STEPS))
    assert border["tokens"] == border["samples"] * state(planned, BORDERS[0])["config"]["data"]["sequence"]
    assert end["tokens"] == border["tokens"] + (end["samples"] - border["samples"]) * 16
    assert state(planned)["tokens"] == end["tokens"]


def test_changes_are_recorded_at_the_borders(planned):
    changes = [event for event in read_events(planned) if event["kind"] == "change"]
    assert [event["step"] for event in changes] == [*BORDERS]
    assert [*changes[0]["after"]] == [
        "data.mix",
        "data.mix_ramp.initial",
        "data.mix_ramp.steps",
        "data.sequence",
        "objective",
    ]
    assert resumed_at(planned) == []


@pytest.fixture(scope="module")
def stopped(runs):
    """Run that was stopped within its second phase, and continued."""
    run = runs.train("stopped", runs.phases, "checkpoint.every=2", f"train.stop_at={STOPPED}", code=75)
    return runs.train(run.name, runs.phases, "checkpoint.every=2")


def test_resume_within_a_phase_is_bit_identical(runs, planned, stopped):
    assert resumed_at(stopped) == [STOPPED]
    assert losses(stopped) == losses(planned)
    runs.train(stopped.name, runs.phases)  # nothing is left to train


def test_damaged_checkpoints_return_to_an_earlier_phase(runs, planned, stopped):
    run = shutil.copytree(stopped, runs.folder / "damaged")
    for step in checkpoints(run)[1:]:
        (run / f"checkpoints/step-{step:08d}/rank-00000.safetensors").write_bytes(b"")
    runs.train(run.name, runs.phases)
    assert resumed_at(run)[-1] == 2
    assert {step: each[-1] for step, each in losses(run).items()} == {
        step: each[-1] for step, each in losses(planned).items()
    }
    assert state(run)["read"] == state(planned)["read"]


def test_positions_of_later_phases_are_known_at_the_start(runs, planned):
    path, *overrides = runs.arguments("none", runs.phases)
    *_, last = positioned_phases(load_config(path, overrides))
    assert last.data.cursors == load_config(planned / "config.yaml").data.cursors
    assert last.data.cursors.step == BORDERS[0]


def test_corpora_of_later_phases_are_checked_at_the_start(runs):
    path, *overrides = runs.arguments("none", f"phases=[{{until: 3}}, {{data.mix: {{{runs.folder / 'absent'}: 1}}}}]")
    config = load_config(path, overrides)
    with pytest.raises(UserError, match=r"phases, after step 3: .*absent.* is not a finished corpus"):
        check_corpora(config)


def test_finished_run_of_the_first_phase_continues(runs, planned):
    """Without `--change`, because the first phase ends where the run ended."""
    run = runs.train("first", f"train.steps={BORDERS[0]}")
    runs.train(run.name, runs.phases)
    assert losses(run) == losses(planned)


def test_branch_without_phases_does_not_enter_the_next_one(runs, planned):
    words = (f"run={runs.folder / 'branch'}", f"from={planned}@{BORDERS[0]}", "phases=[]", "train.steps=7")
    megaptm("train", *words)
    assert [
        event["kind"] for event in read_events(runs.folder / "branch") if event["kind"] in ("branch", "change")
    ] == ["branch"]


def test_killed_run_enters_the_next_phase(runs, planned):
    """The checkpoint of the border is committed, and the config not yet that of the next phase."""
    run = runs.train("killed", runs.phases, "train.stop_at=2", code=75)
    first_phase = (run / "config.yaml").read_text()
    runs.train(run.name, runs.phases, f"train.stop_at={BORDERS[0]}", code=75)
    assert load_config(run / "config.yaml").train.phase_start == BORDERS[0]
    (run / "config.yaml").write_text(first_phase)
    megaptm("train", run, "train.stop_at=null")
    assert losses(run) == losses(planned)


def test_two_data_ranks_equal_changes_on_resume(runs, tmp_path, monkeypatch):
    """No engine of an earlier phase stays in memory."""
    (tmp_path / "engines.py").write_text(COUNTER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    layout = ("layout.data=2", "layout.distributed_optimizer=true")
    planned = runs.train("planned-2", runs.phases, *layout, "callbacks=[engines:Counter]")
    assert recorded(planned) == recorded(runs.by_hand("by-hand-2", *layout))
    assert [record["my/engines"] for record in read_metrics(planned) if "my/engines" in record] == [1] * STEPS
