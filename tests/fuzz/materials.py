"""Small unchanged files of each kind, as of a user."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import torch
import yaml
from safetensors.torch import save_file

from megaptm.distillation.cached_logits import (
    FORMAT,
    SampleLogits,
    logits_file_name,
    sample_digest,
    write_logits_file,
)
from megaptm.families.elmo.bilm import bilm_options, to_bilm
from megaptm.families.elmo.hdf5 import write_hdf5
from megaptm.hub.huggingface import to_hugging_face
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.run.checkpoint import open_checkpoint
from megaptm.storage import hash_regular_file
from tests import ROOT
from tests.fuzz.image_materials import make as make_images
from tests.models.recurrent import tiny_elmo
from tests.train.runs import build, save_untrained, write_text


def make(folder: Path, folders: set[str]) -> None:
    """Write a folder for each kind of file: text, corpora, a run, its export, ELMo, logits of a teacher, a config, a
    recipe, a machine; and the requested ones of images."""
    text = write_text(folder / "text", documents=24)
    for family in ("gpt2", "bert", "t5"):
        build(text, folder / f"corpus-{family}", family)
    run, _ = save_untrained("gpt2", folder / "run", folder / "corpus-gpt2", "train.steps=9")
    (run / "tokenizer").unlink()
    shutil.copytree(folder / "corpus-gpt2/tokenizer", run / "tokenizer")
    _write_journals(run)
    checkpoint = open_checkpoint(run)
    to_hugging_face(checkpoint.spec, checkpoint.weights(), checkpoint.tokenizer, folder / "hf", dtype=torch.float32)
    _write_elmo(folder / "elmo")
    _write_logits(folder / "logits")
    make_images(folder, folders)
    (folder / "config").mkdir()
    (folder / "config/parent.yaml").write_text((ROOT / "configs/defaults.yaml").read_text())
    config = yaml.safe_load((ROOT / "configs/gpt2/tiny.yaml").read_text())
    config |= {"extends": "parent.yaml", "layouts": {1: {"microbatch": 4}, 4: {"tensor": 2}}, "run": "run"}
    config["data"]["mix"] = {"nowhere": 1.0}
    (folder / "config/it.yaml").write_text(yaml.safe_dump(config))
    (folder / "machine").mkdir()
    shutil.copy(ROOT / "configs/machines/a100-80g.yaml", folder / "machine/it.yaml")
    (folder / "recipe").mkdir()
    recipe = {
        "sources": [{"path": str(text)}],
        "steps": ["normalize", {"drop-short": {"characters": 5}}, "gopher-quality", {"scrub": {}}],
        "deduplicate": {"near": True, "paragraphs": True},
        "tokenizer": {"kind": "byte-bpe", "vocabulary": 300},
        "validation": 0.1,
        "limit_bytes": 20_000,
    }
    (folder / "recipe/it.yaml").write_text(yaml.safe_dump(recipe))


def _write_logits(folder: Path) -> None:
    """Write logits of three samples with eight positions and two tokens each."""
    folder.mkdir()
    path = folder / logits_file_name("train", 0)
    positions, ids = np.arange(8, dtype=np.int32), np.arange(16, dtype=np.int32).reshape(8, 2)
    logits = SampleLogits(positions, ids, -ids.astype(np.float16))
    write_logits_file(
        path, [sample_digest({"tokens": np.arange(number, number + 8)}) for number in range(3)], [logits] * 3
    )
    numbers = {"step": 1, "top": 2, "sequence": 8, "vocabulary": 20, "per_file": 4}
    words = {"format": FORMAT, "teacher": "it", "head": "mlm", "positions": "all", "dtype": "float16"}
    manifest = {**words, **numbers, "samples": {"train": 3}, "files": {path.name: hash_regular_file(path)}}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def _write_elmo(folder: Path) -> None:
    """Write files with the names of the released code, and a text file of vectors."""
    folder.mkdir()
    model = Model(spec := tiny_elmo())
    init_weights(model, seed=1)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    if importlib.util.find_spec("h5py"):
        write_hdf5(folder / "weights.hdf5", to_bilm(weights, spec))
    else:
        save_file(to_bilm(weights, spec), folder / "weights.safetensors")
    (folder / "options.json").write_text(json.dumps(bilm_options(spec)))
    (folder / "vocabulary.txt").write_text("\n".join(["<unk>", "<s>", "</s>", "king", "queen", "sea"]) + "\n")
    (folder / "vectors.txt").write_text("king 0.5 -1\nqueen 1e-3 2\nthe sea 3 4\n")


def _write_journals(run: Path) -> None:
    events = [
        {"time": 1.0, "kind": "launch", "command": ["megaptm"], "version": "0", "host": "here", "pid": 1},
        {"time": 2.0, "kind": "start", "parameters": 10, "layout": {}, "processes": 1},
        {"time": 3.0, "kind": "first-step", "step": 1, "seconds": 2.0},
        {"time": 4.0, "kind": "checkpoint", "step": 7, "bytes": 10, "seconds": 0.1},
        {"time": 5.0, "kind": "exit", "code": 0, "productive": 1.0, "data": 0.1, "validation": 0.1, "checkpoint": 0.1},
    ]
    metrics = [
        {"time": 2.0 + step / 4, "step": step, "loss": 5.0 - step / 9, "step_seconds": 0.2} for step in range(1, 8)
    ]
    metrics.append({"time": 4.5, "step": 7, "validation/loss": 4.0, "baseline/unigram": 5.0})
    for name, lines in (("events", events), ("metrics", metrics)):
        (run / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
