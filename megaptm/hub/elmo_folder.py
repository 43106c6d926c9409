"""A folder with ELMo as the released code names it: weights, options, words."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save

from megaptm.errors import UserError
from megaptm.hub.bilm import options, to_bilm
from megaptm.run.checkpoint import RunCheckpoint
from megaptm.storage import write_whole
from megaptm.tokenizers import load as load_tokenizer

WEIGHTS, OPTIONS, WORDS, SOFTMAX = "weights.safetensors", "options.json", "vocabulary.txt", "softmax.safetensors"


def to_elmo_folder(checkpoint: RunCheckpoint, folder: Path) -> None:
    """Write `weights.safetensors`, whose names and shapes are those of the released code's HDF5 file, its
    `options.json`, a line for each word in `vocabulary.txt`, and `softmax.safetensors` with `W` and `b`."""
    spec = checkpoint.spec
    if not (spec.family.is_recurrent and spec.family.reads_characters):
        raise UserError(f"{spec.name} is no ELMo: write it with `megaptm export hf`.")
    weights = {name: tensor.float() for name, tensor in checkpoint.weights().items()}
    tokenizer = load_tokenizer(checkpoint.tokenizer)
    head = "head.bidirectional-lm"
    said = {"W": weights[f"{head}.table.weight"], "b": weights[f"{head}.vocabulary.bias"]}
    softmax = {name: tensor[: spec.vocabulary].contiguous() for name, tensor in said.items()}
    words = [tokenizer.name(id_) for id_ in range(spec.vocabulary)]
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / OPTIONS, json.dumps(options(spec), indent=1).encode() + b"\n")
    write_whole(folder / WORDS, "".join(f"{word}\n" for word in words).encode())
    write_whole(folder / SOFTMAX, save(softmax))
    write_whole(folder / WEIGHTS, save({name: one.to(torch.float32) for name, one in to_bilm(weights, spec).items()}))
