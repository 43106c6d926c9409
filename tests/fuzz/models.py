"""Ways to spoil the files of a trained model, a run's and Hugging Face's; who reads them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from megaptm.checkpoint.manifest import content_id as checkpoint_id
from megaptm.errors import UserError
from tests.fuzz.mutations import NUMBERS, Random, change_bytes, change_json, change_tree
from tests.fuzz.target import Command


def spoil_checkpoint(folder: Path, draw: Random) -> bool:
    path = folder / "checkpoints/step-00000007/manifest.json"
    if draw.random() < 0.3:
        change_json(path, draw)
        return True
    manifest = change_tree(json.loads(path.read_text()), draw)
    if isinstance(manifest, dict):
        manifest = {**manifest, "id": checkpoint_id(manifest)}
    path.write_text(json.dumps(manifest))
    return False


def spoil_tensors(folder: Path, draw: Random) -> bool:
    path = folder / "checkpoints/step-00000007/rank-00000.safetensors"
    path.write_bytes(change_bytes(path.read_bytes(), draw))
    if sealed := draw.random() < 0.5:
        place = path.with_name("manifest.json")
        manifest = json.loads(place.read_text())
        manifest["files"][0] |= {"size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        place.write_text(json.dumps({**manifest, "id": checkpoint_id(manifest)}))
    return not sealed


def read_run(folder: Path) -> Any:
    from megaptm.inference.loaded_model import load_model
    from megaptm.run.checkpoint import open_checkpoint
    from megaptm.run.compatibility import compatibility, refuse_another, refuse_other_text

    trained = load_model(folder)
    for check, wanted in ((refuse_another, compatibility(trained.spec, "")), (refuse_other_text, {})):
        try:
            check(open_checkpoint(folder).checkpoint, wanted)  # type: ignore[operator]
        except UserError:
            continue
    return float(sum(value.double().nan_to_num(0, 1, -1).sum() for value in trained.model.parameters()))


def spoil_safetensors(folder: Path, draw: Random) -> bool:
    path = folder / "model.safetensors"
    content = path.read_bytes()
    if draw.random() < 0.3:
        path.write_bytes(change_bytes(content, draw))
        return False
    size = int.from_bytes(content[:8], "little")
    header = json.dumps(change_tree(json.loads(content[8 : 8 + size]), draw)).encode()
    length = len(header) if draw.random() < 0.8 else abs(draw.choice(NUMBERS)) % 2**64
    path.write_bytes(length.to_bytes(8, "little") + header + content[8 + size :])
    return False


def spoil_hugging_face(folder: Path, draw: Random) -> bool:
    name = draw.choice(
        ["config.json"] * 3 + ["generation_config.json", "tokenizer.json", "tokenizer_config.json", "index"]
    )
    if name != "index":
        change_json(folder / name, draw)
        return False
    return spoil_weights_index(folder, draw)


def spoil_weights_index(folder: Path, draw: Random) -> bool:
    """Which file has which tensor, as folders with several have it."""
    tensors = json.loads(_header(folder / "model.safetensors"))
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, "model-00001-of-00001.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(change_tree(index, draw)))
    return False


def _header(path: Path) -> bytes:
    content = path.read_bytes()
    return content[8 : 8 + int.from_bytes(content[:8], "little")]


def read_hugging_face(folder: Path) -> Any:
    from megaptm.hub.import_run import import_run

    import_run(str(folder), folder / "imported")


def import_commands(folder: Path) -> list[Command]:
    return [["import", "hf", str(folder), str(folder / "imported")]]
