"""Invalid configs are rejected before a corpus is opened and before a run folder is created."""

import json

import pytest

from megaptm.config import load_config
from megaptm.errors import UserError
from tests.bad_input.commands import CONFIGS, user_error


@pytest.mark.parametrize(
    ("family", "override", "sentence"),
    [
        ("gpt2", "train.stpes=1", "override 'train.stpes=1': unknown key train.stpes; did you mean train.steps?"),
        ("gpt2", "modell.layers=2", "override 'modell.layers=2': unknown key modell; did you mean model?"),
        ("gpt2", "train.steps=many", "override 'train.steps=many': train.steps must be an integer, not 'many'."),
        ("gpt2", "layout.tensor=3", "layout.tensor (3) must divide the 4 attention heads of gpt2/custom."),
        ("bert", "layout.tensor=8", "layout.tensor (8) must divide the 2 attention heads of bert/custom."),
        ("gpt2", "layout.pipeline=5", "layout.pipeline (5) must be at most the 4 layers of gpt2/custom."),
        ("t5", "layout.pipeline=5", "layout.pipeline (5) must be at most the 4 layers of t5/custom."),
        (
            "gpt2",
            "layout.data=3",
            "train.batch (16) must be a multiple of layout.data x layout.microbatch (3 x 8); 16 sequences cannot be "
            "divided among 3 data ranks: change devices, or train.batch.",
        ),
    ],
)
def test_invalid_override(tmp_path, family, override, sentence):
    assert user_error("train", CONFIGS / family / "tiny.yaml", f"run={tmp_path / 'run'}", override) == sentence
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["x" * 300, "x/" * 3000])
def test_impossible_file_name(tmp_path, name):
    (tmp_path / "it.yaml").write_text(json.dumps({"extends": name}))
    with pytest.raises(UserError, match="no such config file"):
        load_config(tmp_path / "it.yaml")


def test_name_of_a_family_lists_its_configs():
    """The nearest name would be an arbitrary size, such as gpt2/xl."""
    assert "configs" not in (sentence := user_error("train", "gpt2"))
    assert sentence.startswith("gpt2: no such config file; gpt2 has gpt2/large, ")


@pytest.mark.parametrize(("world", "word"), [(4, "more"), (1, "fewer")])
def test_wrong_number_of_processes(tmp_path, monkeypatch, world, word):
    variables = {"RANK": "0", "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    words = ["train", CONFIGS / "gpt2/tiny.yaml", f"run={tmp_path / 'run'}", "layout.data=2"]
    assert user_error(*words) == (
        f"{world} processes are {word} than the 2 the layout needs (data 2 x tensor 1 x pipeline 1): start 2, or "
        "change layout.data."
    )
    assert not (tmp_path / "run").exists()


def test_long_run_name(tmp_path):
    run = tmp_path / ("x" * 300)
    message = user_error("train", CONFIGS / "gpt2/tiny.yaml", f"run={run}", f"data.mix={{{tmp_path}: 1}}")
    assert "File name too long" in message
