"""A checkpoint whose manifest has a valid id and invalid content counts as damaged; the error is one sentence."""

import copy
import hashlib
import json
import os
from pathlib import Path

import pytest
import torch

from megaptm.checkpoint.checkpoint import Checkpoint
from megaptm.checkpoint.files import DamagedError
from megaptm.checkpoint.manifest import content_id
from megaptm.checkpoint.store import CheckpointStore
from megaptm.checkpoint.tensors import TensorPiece
from megaptm.errors import UserError
from megaptm.run.checkpoint_copy import _list_tokenizer
from megaptm.run.compatibility import recorded_layout

FILE_CHANGES = [
    (("files",), None),
    (("files",), {}),
    (("files",), []),
    (("files", 0), "rank-00000.safetensors"),
    (("files", 0, "name"), "../../../etc/passwd"),
    (("files", 0, "name"), "/etc/passwd"),
    (("files", 0, "name"), "rank-00001.safetensors"),
    (("files", 0, "name"), 7),
    (("files", 0, "size"), "12"),
    (("files", 0, "size"), -1),
    (("files", 0, "sha256"), "no"),
    (("files", 0, "tensors"), 3),
    (("files", 0, "tensors", 0, "name"), "weight/other"),
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
]
MANIFEST_CHANGES = [
    (("indexes",), None),
    (("indexes",), {}),
    (("indexes",), []),
    (("indexes", 0), "index-00000.json"),
    (("indexes", 0, "name"), "../../../etc/passwd"),
    (("indexes", 0, "name"), "/dev/zero"),
    (("indexes", 0, "name"), "manifest.json"),
    (("indexes", 0, "name"), "absent"),
    (("indexes", 0, "name"), 7),
    (("indexes", 0, "size"), -1),
    (("indexes", 0, "size"), "12"),
    (("indexes", 0, "size"), 1 << 50),
    (("indexes", 0, "sha256"), "no"),
    (("indexes", 0, "sha256"), "0" * 64),
    (("indexes", 0, "num_files"), 0),
    (("indexes", 0, "num_files"), 1),
    (("indexes", 0, "num_files"), 1 << 31),
    (("indexes", 0, "num_files"), 1 << 60),
    (("indexes", 0, "num_bytes"), 1),
    (("indexes", 0, "tensors"), 3),
    (("indexes", 0, "tensors"), []),
    (("indexes", 0, "tensors"), [7]),
    (("indexes", 0, "tensors"), ["weight/w", "weight/other"]),
    (("step",), 11),
    (("step",), "10"),
    (("state",), []),
]


@pytest.fixture
def store(tmp_path):
    store = CheckpointStore(tmp_path, keep=2, fence=lambda: True)
    for step in (5, 10):
        store.prepare(step)
        values = torch.arange(12.0).reshape(4, 3)
        for rank in (0, 1):
            rows = values[2 * rank : 2 * rank + 2]
            store.write(step, rank, [TensorPiece("weight/w", (4, 3), (2 * rank, 0), (2, 3), rows)])
        store.commit(step, {"step": step}, 2)
    return store


def changed(content, keys, value):
    part = content
    for key in keys[:-1]:
        part = part[key]
    part[keys[-1]] = copy.deepcopy(value)
    return content


def change_manifest(store, step, keys, value):
    path = store.load(step).folder / "manifest.json"
    manifest = changed(json.loads(path.read_text()), keys, value)
    path.write_text(json.dumps(manifest | {"id": content_id(manifest)}))


def change_index(store, step, keys, value):
    """Change the index, and its hash in the manifest."""
    path = store.load(step).folder / "index-00000.json"
    content = json.dumps(changed(json.loads(path.read_text()), keys, value)).encode()
    path.write_bytes(content)
    change_manifest(store, step, ("indexes", 0, "size"), len(content))
    change_manifest(store, step, ("indexes", 0, "sha256"), hashlib.sha256(content).hexdigest())


def check_damaged(store):
    """The checkpoint of step 10 is rejected in one sentence, and the previous one is loaded."""
    with pytest.raises(DamagedError) as error:
        store.load(10).verify()
    assert "\n" not in str(error.value)
    assert store.newest().step == 5


@pytest.mark.parametrize(("keys", "value"), FILE_CHANGES)
def test_previous_checkpoint_is_loaded_for_a_hostile_index(store, keys, value):
    change_index(store, 10, keys, value)
    check_damaged(store)


@pytest.mark.parametrize(("keys", "value"), MANIFEST_CHANGES)
def test_previous_checkpoint_is_loaded_for_a_hostile_manifest(store, keys, value):
    change_manifest(store, 10, keys, value)
    check_damaged(store)


def test_index_that_is_listed_twice(store):
    path = store.load(10).folder / "manifest.json"
    change_manifest(store, 10, ("indexes",), 2 * json.loads(path.read_text())["indexes"])
    check_damaged(store)


def test_file_in_two_indexes(store):
    folder = store.load(10).folder
    (folder / "index-00001.json").write_bytes((folder / "index-00000.json").read_bytes())
    [entry] = json.loads((folder / "manifest.json").read_text())["indexes"]
    change_manifest(store, 10, ("indexes",), [entry, entry | {"name": "index-00001.json"}])
    with pytest.raises(DamagedError, match="lists a file twice"):
        _ = store.load(10).files


def test_index_must_not_be_a_pipe(store):
    path = store.load(10).folder / "index-00000.json"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UserError, match=r"index-00000\.json cannot be read"):
        store.load(10).verify()


@pytest.mark.parametrize(
    ("config", "layout"),
    [
        (None, {}),
        ([], {}),
        ({"layout": 7}, {}),
        ({"layout": {"data": "2", "tensor": 2}}, {"tensor": 2}),
        ({"layout": {"layers_per_stage": ["a", 2]}}, {}),
        ({"layout": {"layers_per_stage": [3, 1]}}, {"layers_per_stage": [3, 1]}),
    ],
)
def test_invalid_layout_is_not_shown(config, layout):
    assert recorded_layout(Checkpoint(10, Path("step-00000010"), {"config": config}, ())) == layout


def test_huge_shape_allocates_no_memory(store):
    for file in (0, 1):
        change_index(store, 10, ("files", file, "tensors", 0, "shape"), [1 << 50, 3])
    with pytest.raises(UserError, match="its files contain only 12 elements of weight/w"):
        store.load(10).reader.read("weight/w")


def test_deeply_nested_manifest(store):
    path = store.load(10).folder / "manifest.json"
    path.write_text("[" * 100_000)
    assert store.newest().step == 5


def test_deeply_nested_index(store):
    path = store.load(10).folder / "index-00000.json"
    content = b"[" * 100_000
    path.write_bytes(content)
    change_manifest(store, 10, ("indexes", 0, "size"), len(content))
    change_manifest(store, 10, ("indexes", 0, "sha256"), hashlib.sha256(content).hexdigest())
    check_damaged(store)


def test_other_folders_are_ignored(store):
    (store.folder / "step-x").mkdir()
    (store.folder / "step-x/manifest.json").touch()
    assert store.steps() == [10, 5]


def test_copied_tokenizer_with_an_invalid_name_is_refused(tmp_path):
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer/a\\b").touch()
    with pytest.raises(UserError, match="is not a plain file name: copy the checkpoint there again"):
        _list_tokenizer(str(tmp_path))
