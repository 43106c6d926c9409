"""A family and an objective of the user's own, from a folder of theirs: trained by the command, without a fork."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from megaptm.config import load
from megaptm.errors import UserError

ROOT = Path(__file__).parents[1]
WREN = """
from megaptm.families import BERT
from megaptm.objectives.masked import MaskedLM
from megaptm.spec import Size, change


class Rewritten(MaskedLM):
    name = "rewritten"


REWRITTEN = Rewritten()
WREN = change(
    BERT,
    name="wren",
    paper="none",
    stacks={"encoder": change(BERT.last_block, norm_place="pre", share=("attention", "ffn"))},
    heads=("mlm",),
    objectives=("wren_of_mine:REWRITTEN",),
    sizes={"small": Size(layers=2, width=32, heads=2, ffn=64, embedding=16)},
)
NOTHING = 7
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "wren_of_mine.py").write_text(WREN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def megaptm(*words):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "megaptm", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_a_family_and_an_objective_of_the_user_train(folder, real_corpus):
    corpus = real_corpus("wordpiece")
    words = ["model.family=wren_of_mine:WREN", "model.size=small", "train.steps=3", "track.enabled=false", "run=it"]
    nothing = [f"model.{name}=null" for name in ("layers", "width", "heads", "ffn")]
    done = megaptm(
        *("train", ROOT / "configs/tiny/bert.yaml", *words, *nothing),
        *(f"data.mix={{{corpus}: 1}}", "data.sequence=48", "train.batch=8", "train.validate_batches=1"),
    )
    assert done.returncode == 0, done.stderr
    kinds = [json.loads(line)["kind"] for line in (folder / "it/events.jsonl").read_text().splitlines()]
    assert kinds[-1] == "exit"
    done = megaptm("families", "wren_of_mine:WREN", "--json")
    assert json.loads(done.stdout)["wren"]["sizes"]["small"]["embedding"] == 16


def test_the_catalogue_is_listed():
    done = megaptm("families", "--json")
    assert json.loads(done.stdout)["gpt3"]["sizes"]["175b"]["parameters"] == 174_604_259_328
    assert "gpt3" in megaptm("families").stdout
    done = megaptm("families", "gpt5")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("model.family=wren_of_mine:CUCKOO", "model.family: module `wren_of_mine` has no family `CUCKOO`"),
        ("model.family=wren_of_mine:NOTHING", "`wren_of_mine:NOTHING` is not a `megaptm.spec.Family`"),
        ("model.family=nowhere:WREN", "module `nowhere` cannot be imported"),
        ("objective=wren_of_mine:NOTHING", "`wren_of_mine:NOTHING` is not a `megaptm.objectives.Objective`"),
    ],
)
def test_what_cannot_be_had_is_told(folder, word, said):
    with pytest.raises(UserError, match=said):
        load(ROOT / "configs/tiny/bert.yaml", [word])
