"""Mutations and readers of the files of trained models: runs and Hugging Face folders."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from megaptm.checkpoint.manifest import content_id as checkpoint_id
from megaptm.errors import UserError
from tests.fuzz.mutations import NUMBERS, Random, change_bytes, change_json, change_tree
from tests.fuzz.target import Command

INDEX = "index-00000.json"


def mutate_checkpoint(folder: Path, rng: Random) -> bool:
    path = folder / "checkpoints/step-00000007/manifest.json"
    if rng.random() < 0.3:
        change_json(path, rng)
        return True
    if rng.random() < 0.5:
        index = path.with_name(INDEX)
        _write_index(path.parent, json.dumps(change_tree(json.loads(index.read_text()), rng)).encode())
        return False
    manifest = change_tree(json.loads(path.read_text()), rng)
    if isinstance(manifest, dict):
        manifest = {**manifest, "id": checkpoint_id(manifest)}
    path.write_text(json.dumps(manifest))
    return False


def _write_index(folder: Path, content: bytes, **entry: int) -> None:
    """Write the index, and its hash and other values of its entry to the manifest."""
    (folder / INDEX).write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["indexes"][0] |= {"size": len(content), "sha256": hashlib.sha256(content).hexdigest(), **entry}
    (folder / "manifest.json").write_text(json.dumps({**manifest, "id": checkpoint_id(manifest)}))


def mutate_tensors(folder: Path, rng: Random) -> bool:
    path = folder / "checkpoints/step-00000007/rank-00000.safetensors"
    path.write_bytes(change_bytes(path.read_bytes(), rng))
    if rehashed := rng.random() < 0.5:
        index = json.loads(path.with_name(INDEX).read_text())
        index["files"][0] |= {"size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        _write_index(path.parent, json.dumps(index).encode(), num_bytes=path.stat().st_size)
    return not rehashed


def read_run(folder: Path) -> Any:
    from megaptm.inference.loaded_model import load_model
    from megaptm.run.checkpoint import open_checkpoint
    from megaptm.run.compatibility import compatibility_record, refuse_other_model, refuse_other_text

    trained = load_model(folder)
    for check, expected in ((refuse_other_model, compatibility_record(trained.spec, "")), (refuse_other_text, {})):
        try:
            check(open_checkpoint(folder).checkpoint, expected)  # type: ignore[operator]
        except UserError:
            continue
    return float(sum(value.double().nan_to_num(0, 1, -1).sum() for value in trained.model.parameters()))


def mutate_safetensors(folder: Path, rng: Random) -> bool:
    path = folder / "model.safetensors"
    content = path.read_bytes()
    if rng.random() < 0.3:
        path.write_bytes(change_bytes(content, rng))
        return False
    size = int.from_bytes(content[:8], "little")
    header = json.dumps(change_tree(json.loads(content[8 : 8 + size]), rng)).encode()
    length = len(header) if rng.random() < 0.8 else abs(rng.choice(NUMBERS)) % 2**64
    path.write_bytes(length.to_bytes(8, "little") + header + content[8 + size :])
    return False


def mutate_hugging_face(folder: Path, rng: Random) -> bool:
    name = rng.choice(
        ["config.json"] * 3 + ["generation_config.json", "tokenizer.json", "tokenizer_config.json", "index"]
    )
    if name != "index":
        change_json(folder / name, rng)
        return False
    return mutate_weights_index(folder, rng)


def mutate_weights_index(folder: Path, rng: Random) -> bool:
    """Write an index of several weight files, as large models have."""
    tensors = json.loads(_header(folder / "model.safetensors"))
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, "model-00001-of-00001.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(change_tree(index, rng)))
    return False


def _header(path: Path) -> bytes:
    content = path.read_bytes()
    return content[8 : 8 + int.from_bytes(content[:8], "little")]


def read_hugging_face(folder: Path) -> Any:
    from megaptm.hub.import_run import import_run

    import_run(str(folder), folder / "imported")


def import_commands(folder: Path) -> list[Command]:
    return [["import", "hf", str(folder), str(folder / "imported")]]
