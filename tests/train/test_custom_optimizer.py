"""Optimizers and schedules of a user: the example of the docs, and mistakes in their own."""

import re

import pytest

from megaptm.config import load_config, read_config_draft
from megaptm.config.custom_optimizer import custom_decay
from megaptm.config.learning_rate import learning_rate_at
from megaptm.config.schedule import config_warnings
from megaptm.errors import UserError
from megaptm.track import read_metrics
from tests import ROOT
from tests.bad_input.commands import user_error
from tests.drills.program import arguments, losses
from tests.forked import megaptm

PAGE = ROOT / "docs/configs.md"
MISTAKES = """
import torch


class Plain(torch.optim.SGD):
    pass


class Whole(torch.optim.SGD):
    state_tensors = {}


class Undeclared(torch.optim.RMSprop):
    state_tensors = {}


class Late(torch.optim.RMSprop):
    state_tensors = {"square_avg": 0.0, "step": 0.0}

    def step(self):
        super().step()
        for state in self.state.values():
            if state["step"] == 2:
                state["late"] = state["square_avg"].clone()


class Half(Whole):
    state_tensors = {"mean": 0.0}

    def step(self):
        for weight in (weight for group in self.param_groups for weight in group["params"]):
            self.state[weight]["mean"] = weight.grad.bfloat16()


class Failing(Whole):
    def __init__(self, groups, lr):
        raise KeyError("groups")


class Broken(Whole):
    def step(self):
        raise IndexError("moment")


def no_optimizer(groups, lr):
    return groups


no_optimizer.state_tensors = {}


def negative(step, begin, end):
    return -1.0
"""


@pytest.fixture
def code(tmp_path, monkeypatch):
    """Folder with the example of docs/configs.md, and with mistakes."""
    [example] = re.findall(r"^```python\n(import torch\n.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "lion.py").write_text(example)
    (tmp_path / "wrong_rules.py").write_text(MISTAKES)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def words(run, corpus, *more):
    """Return the arguments of a run with the line of the docs."""
    line = re.search(r"^ +optimizer: (\{name: lion.*\})$", PAGE.read_text(), re.MULTILINE)[1]
    schedule = ("train.steps=6", "optimizer.warmup_steps=2", "optimizer.max_warmup_ratio=null")
    return arguments("gpt2", run, corpus, f"optimizer={line}", *schedule, *more)


def test_example_of_the_docs_trains_and_continues_on_another_layout(code, real_corpus):
    corpus = real_corpus("byte-bpe")
    full, cut = code / "full", code / "cut"
    megaptm("train", *words(full, corpus))
    megaptm("train", *words(cut, corpus, "train.stop_at=3"), code=75)
    megaptm("train", *words(cut, corpus, "layout.data=2", "layout.distributed_optimizer=true"))
    values = [losses(run) for run in (full, cut)]
    assert values[0].keys() == values[1].keys() == {*range(1, 7)}
    assert all(values[1][step] == pytest.approx(values[0][step], rel=1e-4) for step in values[0])
    rates = [record["learning_rate"] for record in read_metrics(full) if "learning_rate" in record]
    assert rates == pytest.approx([5e-5, 1e-4, 1e-4, 1e-4, 5.5e-5, 3.25e-5])


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["optimizer.name=wrong_rules:Plain"], "(wrong_rules:Plain) must be a class, or a function, with an attribute"),
        (
            ["optimizer.name=wrong_rules:Whole", "layout.tensor=2"],
            "optimizer.name (wrong_rules:Whole) gets parts of tensors with layout.tensor",
        ),
        (["optimizer.name=wrong_rules:Absent"], "optimizer.name: module `wrong_rules` has no class `Absent`"),
        (["optimizer.decay=wrong_rules:negative"], "optimizer.decay (wrong_rules:negative) returns -1.0 at step"),
        (["optimizer.decay=wrong_rules:absent", "optimizer.warmup_steps=2"], "has no function `absent`"),
        (["optimizer.decay=cosin"], "not 'cosin'; did you mean cosine?"),
        (["optimizer.name=adamw"], "optimizer.options is not used by optimizer.name adamw; remove it"),
    ],
)
def test_mistakes_have_a_sentence(code, real_corpus, more, sentence):
    more = ["optimizer.options={}", *more] if "optimizer.name=adamw" not in more else more
    assert sentence in user_error(
        "train", *words(code / "run", real_corpus("byte-bpe"), "optimizer.warmup_steps=0", *more)
    )


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Undeclared", "`state_tensors` names [], and its state has ['square_avg', 'step']: correct square_avg."),
        ("Late", "its state has ['late', 'square_avg', 'step']: correct late."),
        ("Half", "mean in its state must be a float32 tensor with one value for each element of a weight"),
        ("Failing", "optimizer.name (wrong_rules:Failing) failed (KeyError: 'groups'"),
        ("Broken", "optimizer.name (wrong_rules:Broken): step() failed (IndexError: moment, "),
        ("no_optimizer", "must return a torch.optim.Optimizer with the 2 groups that it is given"),
    ],
)
def test_rule_that_cannot_be_saved_is_refused(code, real_corpus, name, sentence):
    more = ("optimizer.options={}", f"optimizer.name=wrong_rules:{name}")
    assert sentence in megaptm("train", *words(code / "run", real_corpus("byte-bpe"), *more), code=2)


def test_decay_of_a_user_keeps_its_last_rate(code):
    keys = ["optimizer.decay=lion:stairs", "optimizer.lr=1.0", "optimizer.min_lr_ratio=0.0", "train.steps=9"]
    keys += ["optimizer.warmup_steps=3", "optimizer.max_warmup_ratio=null"]
    config = load_config("gpt2/tiny", [*keys, "optimizer.decay_steps=6"])
    assert [learning_rate_at(config, step) for step in (2, 6, 8)] == [1.0, 0.5**3, 0.5**3]
    assert not [line for line in config_warnings(config) if "decay_steps" in line]


def test_decay_of_a_user_has_a_step(code):
    assert custom_decay("lion:stairs", 3.0, 3.0, 3.0) == 1.0
    assert custom_decay("lion:stairs", 9.0, 3.0, 3.0) == 0.5**3


def test_received_run_must_be_allowed_to_name_an_optimizer(code, real_corpus):
    """The module is not one that this process has imported for a config of the user."""
    (code / "received_rules.py").write_text((code / "lion.py").read_text())
    run = code / "run"
    more = ("optimizer.name=lion:Lion", "optimizer.decay=constant", "train.stop_at=1")
    megaptm("train", *words(run, real_corpus("byte-bpe"), *more), code=75)
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("lion:Lion", "received_rules:Lion"))
    assert "names code in module `received_rules`" in user_error("train", run, "train.stop_at=null")


def test_layout_of_a_rule_for_whole_tensors(code):
    words = ["optimizer.name=wrong_rules:Whole", "layout.data=2", "layout.distributed_optimizer=true"]
    [mistake] = read_config_draft("gpt2/tiny", words).mistakes
    assert "gets parts of tensors" in mistake
    assert load_config("gpt2/tiny", [*words, "layout.distributed_optimizer=false"]).layout.data == 2
    with pytest.raises(UserError, match=r"optimizer\.name"):
        load_config("gpt2/tiny", ["optimizer.name=wrong_rules"])
