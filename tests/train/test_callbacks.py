"""Callbacks of the user: methods, requests, state, and exceptions."""

import importlib
import json
import re
from dataclasses import dataclass

import pytest
from click.testing import CliRunner

import megaptm as library
from megaptm.__main__ import main
from megaptm.api import _name_callbacks
from megaptm.config import load_config
from megaptm.config.yamls import flatten_keys
from megaptm.errors import UserError
from megaptm.plugins import NAMED_BY_USER
from megaptm.resilience.events import read_events
from megaptm.run.time_spent import job_times, time_spent
from megaptm.track import read_metrics
from megaptm.track.journal import OWN_METRICS
from megaptm.train.callbacks import METHODS, RunState, load_callbacks
from tests import ROOT
from tests.drills.program import arguments, checkpoints, losses, resumed_at
from tests.forked import megaptm
from tests.train.runs import CONFIGS

PAGE = ROOT / "docs/callbacks.md"
CALLBACKS = """
import json
import os
import time

import megaptm
from megaptm.resilience.heartbeat import HEARTBEATS, read_beats

FAILING = os.environ.get("FAILING")


class Diary(megaptm.Callback):
    def __init__(self, path, stop_at=None):
        self.path, self.stop_at, self.num_steps = path, stop_at, 0

    def write(self, run, *what):
        with open(self.path, "a") as file:
            file.write(json.dumps([run.step, *what]) + "\\n")

    def on_run_start(self, run):
        self.write(run, "start", self.num_steps)

    def on_step_end(self, run, result):
        self.num_steps += 1
        self.write(run, "step", result.loss, run.learning_rate)
        run.log_metrics({"my/steps": self.num_steps})
        if run.step == 2:
            run.request_save()
        if run.step == self.stop_at:
            run.request_stop("good enough")

    def on_validation(self, run, losses):
        self.write(run, "validation", losses["loss"])

    def on_checkpoint(self, run, step, seconds):
        self.write(run, "checkpoint", step)

    def on_stop(self, run, code):
        self.write(run, "stop", code)

    def state_dict(self):
        return {"num_steps": self.num_steps}

    def load_state_dict(self, state):
        self.num_steps = state["num_steps"]


class Failing(megaptm.Callback):
    pass


def fail(self, *arguments):
    raise KeyError("label")


if FAILING:
    setattr(Failing, FAILING, fail)


class Slow(megaptm.Callback):
    def on_step_end(self, run, result):
        time.sleep(0.5)
        [folder] = (run.folder / HEARTBEATS).iterdir()
        assert read_beats(folder, [0])[0].phase == "callbacks"

    def on_validation(self, run, losses):
        self.on_step_end(run, None)


class Mistyped(megaptm.Callback):
    def on_step_ends(self, run):
        pass


class Other:
    pass
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "followers.py").write_text(CALLBACKS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "run"


@pytest.fixture
def early(run):
    """Module with the example of docs/callbacks.md."""
    [example] = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (run.parent / "stop_early.py").write_text(example)
    return importlib.import_module("stop_early")


@pytest.fixture(scope="module")
def corpus(real_corpus):
    return real_corpus("byte-bpe")


def test_callback_follows_saves_stops_and_continues_a_run(run, corpus):
    """Two data ranks, so that the requests of rank 0 reach both; the losses are those of a run without callbacks."""
    shared = ("train.steps=6", "layout.data=2", "train.validate_every=3")
    diary = run.with_name("diary.jsonl")

    def train(stop_at):
        options = json.dumps({"followers:Diary": {"path": str(diary), "stop_at": stop_at}})
        return megaptm("train", *arguments("gpt2", run, corpus, *shared, f"callbacks={options}"))

    assert "step 4/6  stopped: good enough" in train(4)
    assert checkpoints(run) == [2, 4]
    [stop] = [event for event in read_events(run) if event["kind"] == "stop-request"]
    assert (stop["step"], stop["reason"]) == (4, "good enough")
    train(None)
    assert resumed_at(run) == [4]
    entries = [json.loads(line) for line in diary.read_text().splitlines()]
    assert [(step, kind) for step, kind, *_ in entries if kind != "checkpoint"] == [
        *((0, "start"), (1, "step"), (2, "step"), (3, "step"), (3, "validation"), (4, "step")),
        *((4, "stop"), (4, "start"), (5, "step"), (6, "step"), (6, "validation"), (6, "stop")),
    ]
    assert [value for _, kind, value, *_ in entries if kind == "checkpoint"] == [2, 4, 6]
    assert [value for _, kind, value, *_ in entries if kind == "start"] == [0, 4]
    assert [value for _, kind, value, *_ in entries if kind == "stop"] == [0, 0]
    recorded = {record["step"]: record["my/steps"] for record in read_metrics(run) if "my/steps" in record}
    assert recorded == {step: step for step in range(1, 7)}
    plain = run.with_name("plain")
    megaptm("train", *arguments("gpt2", plain, corpus, *shared))
    assert losses(run) == losses(plain)
    assert {step: [value] for step, kind, value, *_ in entries if kind == "step"} == losses(plain)
    own = {key.partition("/")[0] for record in read_metrics(plain) for key in record}
    assert own <= OWN_METRICS


def test_example_of_the_page_stops_a_run_that_does_not_learn(run, corpus, early):
    more = ("train.steps=9", "train.validate_every=1", "optimizer.lr=1e-30")
    options = json.dumps(_name_callbacks([early.StopEarly(patience=2)]))
    output = megaptm("train", *arguments("gpt2", run, corpus, *more, f"callbacks={options}"))
    [stop] = [event for event in read_events(run) if event["kind"] == "stop-request"]
    assert stop["step"] == 3
    assert f"stopped: {stop['reason']}" in output
    assert stop["reason"].startswith("2 validations without a lower loss than ")
    assert [record["early/waited"] for record in read_metrics(run) if "early/waited" in record][-2:] == [1, 2]


@pytest.mark.parametrize(
    ("method", "saved"),
    [
        ("on_run_start", []),
        ("on_step_end", [1]),
        ("on_validation", [2]),
        ("on_checkpoint", [1, 2]),
        ("state_dict", [1, 2]),
    ],
)
def test_failing_callback_ends_a_saved_run(run, corpus, monkeypatch, method, saved):
    monkeypatch.setenv("FAILING", method)
    more = ("train.steps=9", "train.validate_every=2", "callbacks=[followers:Failing]", "checkpoint.asynchronous=false")
    every = {"on_checkpoint": 1, "state_dict": 1}.get(method, 9)
    output = megaptm("train", *arguments("gpt2", run, corpus, *more, f"checkpoint.every={every}"), code=2)
    line = next(line for line in output.splitlines() if line.startswith("error: "))
    location = f"(KeyError: 'label', {run.parent}/followers.py:"
    assert line.startswith(f"error: callback followers:Failing: {method} failed {location}")
    assert line.endswith(f": fix it; the run is saved at step {saved[-1]}." if saved else ": fix it.")
    assert "Traceback" in output
    assert checkpoints(run) == saved


@pytest.mark.parametrize("method", ["on_stop", "on_checkpoint"])
def test_failure_after_the_end_is_a_warning(run, corpus, monkeypatch, method):
    monkeypatch.setenv("FAILING", method)
    output = megaptm("train", *arguments("gpt2", run, corpus, "train.steps=2", "callbacks=[followers:Failing]"))
    assert f"warning: callback followers:Failing: {method} failed (KeyError: 'label'" in output
    assert checkpoints(run) == [2]


def test_state_that_fails_at_the_last_save_is_an_error(run, corpus, monkeypatch):
    monkeypatch.setenv("FAILING", "state_dict")
    output = megaptm("train", *arguments("gpt2", run, corpus, "train.steps=2", "callbacks=[followers:Failing]"), code=2)
    [line] = [line for line in output.splitlines() if "followers:Failing" in line]
    assert line.startswith("error: callback followers:Failing: state_dict failed (KeyError: 'label'")
    assert line.endswith(": fix it; the run is saved at step 2.")


def test_callbacks_are_a_phase_of_their_own(run, corpus):
    """The watchdog gives them more time than a step, and their seconds are counted."""
    more = ("train.steps=2", "train.validate_every=1", "callbacks=[followers:Slow]")
    megaptm("train", *arguments("gpt2", run, corpus, *more))
    assert time_spent(job_times(read_events(run), read_metrics(run))).callbacks > 4 * 0.5


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("followers:Mistyped", {}, r"on_step_ends is never called; did you mean on_step_end\?"),
        ("followers:Other", {}, r"must be a subclass of megaptm\.Callback"),
        ("followers:Failing", {"patience": 3}, r"callbacks \(followers:Failing\) failed \(TypeError"),
        ("followers:Absent", {}, "module `followers` has no class `Absent`"),
        ("no_such_module:Stop", {}, "cannot be imported"),
    ],
)
def test_invalid_callback_is_rejected(run, name, options, message):
    NAMED_BY_USER.update(("followers", "no_such_module"))
    with pytest.raises(UserError, match=message):
        load_callbacks({name: options})


@pytest.mark.parametrize("value", ["[stop]", "stop", "{stop: {}}", "{a.b:Stop: 3}"])
def test_config_rejects_other_values(value):
    with pytest.raises(UserError, match="callbacks"):
        load_config(CONFIGS / "gpt2/tiny.yaml", [f"callbacks={value}", "model.vocabulary=300"])


def test_config_imports_no_callback():
    shown = CliRunner().invoke(main, ["config", "show", str(CONFIGS / "gpt2/tiny.yaml"), "callbacks=[no_such:Stop]"])
    assert "no_such:Stop: {}" in shown.output
    assert flatten_keys({"callbacks": {"a.b:Stop": {"patience": 3}}}) == {"callbacks": {"a.b:Stop": {"patience": 3}}}


@dataclass
class Patience(library.Callback):
    steps: int = 3


class Plain(library.Callback):
    pass


def test_classes_and_dataclasses_are_named():
    assert _name_callbacks([Plain, Patience(5), "a.b:C"]) == {
        f"{__name__}:Plain": {},
        f"{__name__}:Patience": {"steps": 5},
        "a.b:C": {},
    }
    with pytest.raises(UserError, match="must be a dataclass"):
        _name_callbacks([Plain()])


def test_class_of_a_script_is_rejected(monkeypatch):
    monkeypatch.setattr(Plain, "__module__", "__main__")
    with pytest.raises(UserError, match="move the class to the top of a module"):
        _name_callbacks([Plain])


@pytest.mark.parametrize("name", ["loss", "validation/mine", "step"])
def test_metric_of_the_run_is_rejected(tmp_path, name):
    with pytest.raises(ValueError, match="is one of the run itself"):
        RunState(tmp_path, load_config(CONFIGS / "gpt2/tiny.yaml", ["model.vocabulary=300"])).log_metrics({name: 1.0})


def test_methods_are_documented():
    assert METHODS == ["on_run_start", "on_step_end", "on_validation", "on_checkpoint", "on_stop"]
