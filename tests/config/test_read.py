"""Reading: extends, overrides, and what is said about mistakes."""

from pathlib import Path

import pytest

from megaptm.config import dump, load
from megaptm.errors import UserError

MINIMAL = """\
run: runs/a
model: {family: gpt2, size: small}
data: {mix: {corpus: 1}, sequence: 64}
optimizer:
  lr: 1e-3
train: {steps: 10, batch: 4}
"""


@pytest.fixture
def minimal(tmp_path: Path) -> Path:
    path = tmp_path / "minimal.yaml"
    path.write_text(MINIMAL)
    return path


def complaint(path: Path, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        load(path, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_absent_values_are_the_published_ones(minimal):
    config = load(minimal)
    assert (config.model.vocabulary, config.model.context, config.model.layers) == (50257, 1024, 12)
    assert config.objective == "causal-lm"
    assert config.optimizer.lr == 1e-3


def test_the_nearest_file_wins_and_sections_are_merged(minimal, tmp_path):
    child = tmp_path / "sub" / "child.yaml"
    child.parent.mkdir()
    child.write_text("extends: ../minimal.yaml\ntrain: {steps: 20}\n")
    grandchild = tmp_path / "grandchild.yaml"
    grandchild.write_text("extends: sub/child.yaml\ntrain: {seed: 7}\n")
    train = load(grandchild).train
    assert (train.steps, train.batch, train.seed) == (20, 4, 7)


def test_a_mix_replaces_the_one_it_inherits(minimal, tmp_path):
    child = tmp_path / "child.yaml"
    child.write_text("extends: minimal.yaml\ndata: {mix: {books: 2, web: 1.5}}\n")
    assert load(child).data.mix == {"books": 2.0, "web": 1.5}


def test_overrides_are_yaml_and_come_last(minimal):
    config = load(minimal, ["train.steps=30", "optimizer.betas=[0.8, 0.9]", "data.mix={a/b.c: 1e-1}", "run=x=y"])
    assert config.train.steps == 30
    assert config.optimizer.betas == (0.8, 0.9)
    assert config.data.mix == {"a/b.c": 0.1}
    assert config.run == "x=y"


def test_null_takes_an_inherited_value_away(minimal):
    assert load(minimal, ["optimizer.clip=2.0"]).optimizer.clip == 2.0
    assert load(minimal, ["optimizer.clip=2.0", "optimizer.clip=null"]).optimizer.clip is None


def test_what_is_dumped_is_read_back_equal(minimal, tmp_path):
    config = load(minimal, ["layout.tensor=2", "layout.sequence_parallel=true", "train.stop_at=5"])
    (tmp_path / "dumped.yaml").write_text(dump(config))
    assert load(tmp_path / "dumped.yaml") == config


def test_a_file_that_extends_itself_is_refused(tmp_path):
    (tmp_path / "a.yaml").write_text("extends: b.yaml\n")
    (tmp_path / "b.yaml").write_text("extends: a.yaml\n")
    assert "extends itself" in complaint(tmp_path / "a.yaml")


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("optimizer.lrr=1", ["override 'optimizer.lrr=1'", "unknown key optimizer.lrr", "did you mean optimizer.lr?"]),
        ("layout.batch=1", ["unknown key layout.batch", "did you mean train.batch?"]),
        ("batch=1", ["unknown key batch", "did you mean train.batch?"]),
        ("optimiser={}", ["unknown key optimiser", "did you mean optimizer?"]),
        ("train.zzzz=1", ["unknown key train.zzzz", "train has steps, batch, seed"]),
        ("train.steps.more=1", ["train.steps must be an integer"]),
        ("train.steps=many", ["override 'train.steps=many'", "train.steps must be an integer, not 'many'"]),
        ("train.steps=1.5", ["train.steps must be an integer, not 1.5"]),
        ("train.steps=true", ["train.steps must be an integer, not True"]),
        ("train.steps=0", ["train.steps must be at least 1, not 0"]),
        ("train.steps=", ["train.steps must be an integer, not empty"]),
        ("layout.sequence_parallel=no", ["layout.sequence_parallel must be true or false, not 'no'"]),
        ("train.precision=fp16", ["train.precision must be 'fp32' or 'bf16', not 'fp16'"]),
        ("data.mix={}", ["data.mix must be 1 or more entries"]),
        ("data.mix={a: -1}", ["data.mix.a must be more than 0"]),
        ("data=corpus", ["data must be a section (a mapping), not 'corpus'"]),
        ("optimizer.betas=[0.9]", ["optimizer.betas"]),
        ("train.steps", ["override 'train.steps'", "key=value"]),
        ("train..steps=1", ["key=value"]),
        ("train.steps=[1", ["override 'train.steps=[1'", "not valid YAML"]),
    ],
)
def test_a_mistake_is_one_sentence_that_names_the_key(minimal, override, parts):
    told = complaint(minimal, override)
    for part in parts:
        assert part in told


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (MINIMAL.replace("steps: 10", "stpes: 10"), ["wrong.yaml:6", "unknown key train.stpes", "train.steps?"]),
        (MINIMAL.replace("lr: 1e-3", "lr: fast"), ["wrong.yaml:5", "optimizer.lr must be a number, not 'fast'"]),
        (MINIMAL.replace("steps: 10, ", ""), ["wrong.yaml:6", "train.steps is missing (Optimizer steps"]),
        (MINIMAL.replace("steps: 10", "steps: [10"), ["wrong.yaml:6", "not valid YAML"]),
        (MINIMAL + "run: runs/b\n", ["wrong.yaml:7", "run is written twice"]),
        (MINIMAL + "? [a]\n: 1\n", ["wrong.yaml"]),
        ("- a\n- b\n", ["wrong.yaml", "a config is a mapping"]),
        ("", ["wrong.yaml", "is missing"]),
        ("extends: [a]\n", ["wrong.yaml:1", "extends takes one path"]),
        ("extends: nowhere.yaml\n", ["nowhere.yaml", "no such config file"]),
    ],
)
def test_a_mistake_in_a_file_names_its_line(tmp_path, text, parts):
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    told = complaint(path)
    for part in parts:
        assert part in told


def test_bytes_that_are_not_utf8_and_folders_are_refused(tmp_path):
    (tmp_path / "latin.yaml").write_bytes(b"run: caf\xe9\n")
    assert "not UTF-8" in complaint(tmp_path / "latin.yaml")
    assert "is a folder" in complaint(tmp_path)
