"""A family and an objective of the user's own, from a folder of theirs: trained by the command, without a fork."""

import json
import math
import os
import subprocess
import sys

import pytest

from megaptm.bricks import register_head
from megaptm.config import load
from megaptm.errors import UserError
from megaptm.inference.loaded_model import load_model
from megaptm.track import read_metrics
from tests import ROOT
from tests.models.pairs import PairsBrick

WREN = """
from dataclasses import replace

import numpy as np

from megaptm.batch import Field
from megaptm.bricks import HeadBrick, Map, register_head
from megaptm.families import BERT
from megaptm.objectives.masked import MaskedLM
from megaptm.spec import Size, change


class Rewritten(MaskedLM):
    # Masked tokens, and a question about the whole row: are most of its tokens of the first hundred?

    name = "rewritten"
    losses = {"low": 0.5, "mlm": 1.0}

    def batch(self, sequence, document_mask):
        spec = super().batch(sequence, document_mask)
        return replace(spec, fields={**spec.fields, "low": Field(())})

    def make(self, piece, context):
        sample = super().make(piece, context)
        return {**sample, "low": np.array((sample["tokens"] < 100).mean() > 0.5, dtype="int64")}


@register_head
class LowBrick(HeadBrick):
    name = answers = "low"
    projects = False
    module = "head_of_mine:Low"

    @property
    def maps(self):
        return {"classify": Map(self.size.width, 2, True)}


class Abstract(Rewritten):
    def __init__(self, rate):
        pass


REWRITTEN = Rewritten()
WREN = change(
    BERT,
    name="wren",
    paper="none",
    stacks={"encoder": change(BERT.last_block, norm_place="pre", share=("attention", "ffn"))},
    heads=("mlm", "low"),
    objectives=("wren_of_mine:REWRITTEN",),
    sizes={"small": Size(layers=2, width=32, heads=2, ffn=64, embedding=16)},
)
NOTHING = 7
"""
HEAD = """
import torch.nn.functional as F
from torch import nn

from megaptm.layers.split import Linear


class Low(nn.Module):
    def __init__(self, spec, brick):
        super().__init__()
        self.classify = Linear.of(brick.maps["classify"])

    def loss(self, x_SBD, batch, tied):
        labels = batch["low"]
        return F.cross_entropy(self.logits(x_SBD, tied).float(), labels, reduction="sum"), (labels >= 0).sum().float()

    def logits(self, x_SBD, tied):
        return self.classify(x_SBD.mean(0))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "wren_of_mine.py").write_text(WREN)
    (tmp_path / "head_of_mine.py").write_text(HEAD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def megaptm(*words):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "megaptm", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_a_family_an_objective_and_a_head_of_the_user_train(folder, real_corpus):
    corpus = real_corpus("wordpiece")
    words = ["model.family=wren_of_mine:WREN", "model.size=small", "train.steps=3", "track.enabled=false", "run=it"]
    nothing = [f"model.{name}=null" for name in ("layers", "width", "heads", "ffn")]
    done = megaptm(
        *("train", ROOT / "configs/bert/tiny.yaml", *words, *nothing),
        *(
            f"data.mix={{{corpus}: 1}}",
            "data.sequence=48",
            "train.batch=8",
            "layout.microbatch=8",
            "train.validate_batches=1",
        ),
    )
    assert done.returncode == 0, done.stderr
    kinds = [json.loads(line)["kind"] for line in (folder / "it/events.jsonl").read_text().splitlines()]
    assert kinds[-1] == "exit"
    losses = {name for record in read_metrics(folder / "it") for name in record}
    assert {"loss/mlm", "loss/low"} <= losses
    asked = load_model(folder / "it").evaluate(rows=4).losses["low"]
    assert (asked.asked, asked.uniform) == (4, math.log(2))
    done = megaptm("families", "wren_of_mine:WREN", "--json")
    assert json.loads(done.stdout)["wren"]["sizes"]["small"]["embedding"] == 16


def test_an_objective_may_be_named_by_its_class(folder):
    config = load(ROOT / "configs/bert/tiny.yaml", ["objective=wren_of_mine:Rewritten"])
    assert config.built_objective.name == "rewritten"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"maps": None}, "there is a head called 'low' already"),
        ({"module": ""}, r"module \(''\) must be written `package.module:NAME`"),
    ],
)
def test_a_head_must_say_what_it_is(folder, change, said):
    import wren_of_mine

    with pytest.raises(TypeError, match=said):
        register_head(type("Another", (wren_of_mine.LowBrick,), change))


def test_a_head_that_compares_rows_says_of_how_many_numbers() -> None:
    unsaid = type("Unsaid", (PairsBrick,), {"name": "unsaid", "features": 0})
    with pytest.raises(TypeError, match="Unsaid does not say what its comparison costs: give it `features`"):
        register_head(unsaid)


def test_the_catalogue_is_listed():
    found = json.loads(megaptm("families", "--json").stdout)["gpt3"]
    assert found["sizes"]["175b"]["parameters"] == 174_604_259_328
    layouts = found["layouts"]["gpt3/175b"]
    assert layouts["1024"]["data"] * layouts["1024"]["tensor"] * layouts["1024"]["pipeline"] == 1024
    assert found["hugging_face"] == ["GPT2LMHeadModel"]
    assert "gpt3" in megaptm("families").stdout
    assert "Hugging Face's model: none" in megaptm("families", "unilm").stdout
    assert f"tensor={layouts['1024']['tensor']}" in megaptm("families", "gpt3").stdout
    done = megaptm("families", "gpt5")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("model.family=wren_of_mine:CUCKOO", "model.family: module `wren_of_mine` has no family `CUCKOO`"),
        ("model.family=wren_of_mine:NOTHING", "`wren_of_mine:NOTHING` is not a `megaptm.spec.Family`"),
        ("model.family=nowhere:WREN", "module `nowhere` cannot be imported"),
        ("objective=wren_of_mine:NOTHING", "`wren_of_mine:NOTHING` is not a `megaptm.objectives.Objective`"),
        (
            "objective=wren_of_mine:Abstract",
            r"`wren_of_mine:Abstract` cannot be made \(TypeError: .*'rate'.*\): mend it",
        ),
        ("objective=..:NOTHING", r"objective \(\.\.:NOTHING\) is not known"),
        ("model.family=.wren_of_mine:WREN", r"model\.family \(\.wren_of_mine:WREN\) is not in the catalogue"),
        (
            "objective=raises:IT",
            r"objective: module `raises` cannot be imported \(ValueError: no, .*raises.py:1\): mend it",
        ),
        ("model.family=leaves:IT", r"module `leaves` cannot be imported \(SystemExit: 0, .*leaves.py:2\): mend it"),
        ("objective={a: {task: 'lacks:IT'}}", r"`lacks` cannot be imported \(AttributeError: .*lacks.py:2\): mend it"),
        (
            "objective={masked-lm: {hide: 'needs:IT'}}",
            r"`needs` cannot be imported \(ModuleNotFoundError: .*\): mend it",
        ),
        ("model.family=odd:IT", r"`odd` cannot be imported \(Odd: no, .*odd.py:2\): mend it"),
        ("objective=asked:IT", r"`asked` cannot be imported \(ValueError: IT, .*asked.py:2\): mend it"),
    ],
)
def test_what_cannot_be_had_is_told(folder, word, said):
    (folder / "raises.py").write_text("raise ValueError('no')\n")
    (folder / "leaves.py").write_text("import sys\nsys.exit(0)\n")
    (folder / "lacks.py").write_text("import os\nos.nothing\n")
    (folder / "needs.py").write_text("import nowhere_at_all\n")
    (folder / "odd.py").write_text("class Odd(BaseException): ...\nraise Odd('no')\n")
    (folder / "asked.py").write_text("def __getattr__(name):\n    raise ValueError(name)\n")
    with pytest.raises(UserError, match=said):
        load(ROOT / "configs/bert/tiny.yaml", [word])


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("replace(GPT2, stacks={})", "stacks is empty"),
        ("replace(GPT2, stacks={'decoder': 3})", r"stacks\.decoder: "),
        ("replace(GPT2, sizes={'small': 3})", r"sizes\.small: "),
        ("replace(GPT2, sizes={'small': Size(layers=0, width=8, heads=1, ffn=8)})", r"sizes\.small\.layers is 0"),
        ("replace(GPT2, objectives=())", "objectives is empty"),
        ("replace(GPT2, vocabulary='many')", "vocabulary: "),
        ("replace(GPT2, context=-1)", "context is -1"),
        ("replace(GPT2, reads={'lm': 'encoder'})", "reads has lm: encoder, which is no stack or layer of one"),
        ("replace(GPT2, reads={'lm': 'decoder.last'})", r"reads has lm: decoder\.last"),
        ("replace(GPT2, drawn={'decoder': 'lm'})", "drawn has decoder: lm"),
        ("replace(WORD2VEC, sizes={})", "sizes is empty"),
        ("replace(WORD2VEC, sizes={'small': 3})", r"sizes\.small: "),
        ("replace(WORD2VEC, objectives=())", "objectives is empty"),
    ],
)
def test_a_table_of_the_users_that_is_none_is_told(folder, table, said):
    module = f"broken_{abs(hash(table))}"
    (folder / f"{module}.py").write_text(
        "from dataclasses import replace\nfrom megaptm.families.gpt import GPT2\n"
        f"from megaptm.families.words import WORD2VEC\nfrom megaptm.spec import Size\nIT = {table}\n"
    )
    config = "word2vec" if "WORD2VEC" in table else "gpt2"
    with pytest.raises(UserError, match=rf"model\.family: the table `{module}:IT` cannot be read \({said}"):
        load(ROOT / f"configs/{config}/tiny.yaml", [f"model.family={module}:IT"])


def test_what_a_module_prints_is_no_output_of_the_command(folder):
    (folder / "loud.py").write_text("print('loaded')\nfrom wren_of_mine import WREN\n")
    done = megaptm("families", "loud:WREN", "--json")
    assert (json.loads(done.stdout).keys(), done.stderr) == ({"wren": 0}.keys(), "loaded\n")
