"""A checkpoint whose manifest has a valid id and invalid content counts as damaged; the error is one sentence."""

import copy
import json
from pathlib import Path

import pytest
import torch

from megaptm.checkpoint.files import DamagedError
from megaptm.checkpoint.manifest import content_id
from megaptm.checkpoint.store import Checkpoint, Store
from megaptm.checkpoint.tensors import TensorPiece
from megaptm.errors import UserError
from megaptm.run.compatibility import recorded_layout

CHANGES = [
    (("files",), None),
    (("files",), {}),
    (("files", 0), "rank-00000.safetensors"),
    (("files", 0, "name"), "../../../etc/passwd"),
    (("files", 0, "name"), "/etc/passwd"),
    (("files", 0, "name"), 7),
    (("files", 0, "size"), "12"),
    (("files", 0, "size"), -1),
    (("files", 0, "sha256"), "no"),
    (("files", 0, "tensors"), 3),
    (("files", 0, "tensors", 0, "dtype"), "F7"),
    (("files", 0, "tensors", 0, "shape"), [1 << 60, 3]),
    (("files", 0, "tensors", 0, "shape"), [4.0, 3]),
    (("files", 0, "tensors", 0, "shape"), [4]),
    (("files", 0, "tensors", 0, "block"), [-2, 3]),
    (("files", 0, "tensors", 0, "block"), [400, 3]),
    (("files", 0, "tensors", 0, "offset"), [3, 0]),
    (("files", 0, "tensors", 0, "span"), [6, 0]),
    (("files", 0, "tensors", 0, "span"), [0, 600]),
    (("files", 0, "tensors", 0, "start"), 1 << 40),
    (("files", 0, "tensors", 0, "start"), -8),
    (("step",), 11),
    (("step",), "10"),
    (("state",), []),
]


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path, keep=2, fence=lambda: True)
    for step in (5, 10):
        store.prepare(step)
        values = torch.arange(12.0).reshape(4, 3)
        for rank in (0, 1):
            rows = values[2 * rank : 2 * rank + 2]
            store.write(step, rank, [TensorPiece("weight/w", (4, 3), (2 * rank, 0), (2, 3), rows)])
        store.commit(step, {"step": step}, 2)
    return store


def change(store, step, keys, value):
    path = store.load(step).folder / "manifest.json"
    manifest = json.loads(path.read_text())
    part = manifest
    for key in keys[:-1]:
        part = part[key]
    part[keys[-1]] = copy.deepcopy(value)
    manifest["id"] = content_id(manifest)
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize(("keys", "value"), CHANGES)
def test_previous_checkpoint_is_loaded(store, keys, value):
    change(store, 10, keys, value)
    with pytest.raises(DamagedError) as error:
        store.load(10)
    assert "\n" not in str(error.value)
    assert store.newest().step == 5


@pytest.mark.parametrize(
    ("config", "layout"),
    [(None, {}), ([], {}), ({"layout": 7}, {}), ({"layout": {"data": "2", "tensor": 2}}, {"tensor": 2})],
)
def test_invalid_layout_is_not_shown(config, layout):
    assert recorded_layout(Checkpoint(10, Path("step-00000010"), {"config": config}, ())) == layout


def test_huge_shape_allocates_no_memory(store):
    for file in (0, 1):
        change(store, 10, ("files", file, "tensors", 0, "shape"), [1 << 50, 3])
    with pytest.raises(UserError, match="its files contain only 12 elements of weight/w"):
        store.load(10).reader.read("weight/w")


def test_deeply_nested_manifest(store):
    path = store.load(10).folder / "manifest.json"
    path.write_text("[" * 100_000)
    assert store.newest().step == 5


def test_other_folders_are_ignored(store):
    (store.folder / "step-x").mkdir()
    (store.folder / "step-x/manifest.json").touch()
    assert store.steps() == [10, 5]
