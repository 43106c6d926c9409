"""Malicious YAML is rejected at once, with one sentence: it is huge when expanded, contains itself, or is no text."""

import os
import re

import pytest

from data_pipeline.recipe import read_recipe
from megaptm.config import load_config
from megaptm.errors import UserError
from megaptm.plan.machine import load_machine
from tests.bad_input.commands import user_error

READERS = {
    "config": load_config,
    "machine": lambda path: load_machine(str(path)),
    "recipe": lambda path: read_recipe([str(path)]),
}
LAUGHS = "\n".join(
    ["a0: &a0 [lol, lol]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)), "run: *a11"]
)
MERGES = "\n".join(
    ["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 12)), "run: *a11"]
)
TEXTS = {
    "billion laughs": (LAUGHS, "its aliases expand to more than 100,000 values"),
    "billion merges": (MERGES, "its aliases expand to more than 100,000 values"),
    "itself": ("model: &m\n  layers: *m\n", ":1: model.layers contains itself"),
    "itself in a list": ("&x\nmodel: [1, *x]\n", "contains itself"),
    "itself by merging": ("model: &m\n  <<: *m\n", "contains itself"),
    "5,000 brackets": ("model: " + "[" * 5000, "nested more than 32 deep"),
    "500 closed brackets": ("model: " + "[" * 500 + "]" * 500, "nested more than 32 deep"),
    "5,000 braces": ("model: " + "{a: " * 5000, "nested more than 32 deep"),
    "a key of keys": ("? {a: b}\n: c\n", "a key must be a string"),
    "NUL": ('run: "a\\0b"\n', "has the character U+0000"),
    "half a character": ('run: "\\ud800"\n', "has the character U+D800"),
    "a bell": ("run: a\ab\n", "not valid YAML"),
    "no integer": ("run: !!int ''\n", "not valid YAML"),
    "no truth": ("run: !!bool maybe\n", "not valid YAML"),
    "no time": ("run: !!timestamp never\n", "not valid YAML"),
    "an object": ("run: !!python/object/apply:os.system [ls]\n", "not valid YAML"),
    "a long number": ("train: {steps: " + "9" * 5000 + "}\n", "not valid YAML"),
    "two megabytes": ("# " + "x" * (2 << 20), "more than 1,048,576 bytes"),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", TEXTS)
def test_file_is_rejected(tmp_path, reader, name):
    text, sentence = TEXTS[name]
    path = tmp_path / "it.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=re.escape(sentence)) as error:
        READERS[reader](path)
    assert "\n" not in str(error.value)


def test_override_is_rejected(tmp_path):
    path = tmp_path / "it.yaml"
    path.write_text("run: x\n")
    assert "nested more than 32 deep" in user_error("train", path, "data.mix=" + "[" * 5000)


@pytest.mark.parametrize("reader", READERS)
def test_pipe_is_rejected(tmp_path, reader):
    os.mkfifo(tmp_path / "it.yaml")
    with pytest.raises(UserError, match="no such config file"):
        READERS[reader](tmp_path / "it.yaml")
