"""Export of ELMo in the files of the released code: weights, options, vocabulary."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save

from megaptm.errors import UserError
from megaptm.families.elmo.bilm import bilm_options, to_bilm
from megaptm.families.elmo.hdf5 import import_h5py, write_hdf5
from megaptm.families.elmo.spec import CharacterInput, ProjectedLSTMSpec
from megaptm.run.checkpoint import RunCheckpoint
from megaptm.storage import write_atomically
from megaptm.tokenizers import load_tokenizer

WEIGHTS, OPTIONS, WORDS, SOFTMAX = "weights.safetensors", "options.json", "vocabulary.txt", "softmax.safetensors"
HDF5 = "weights.hdf5"


def export_elmo(checkpoint: RunCheckpoint, folder: Path, *, hdf5: bool = False) -> Path:
    """Export ELMo: write `weights.safetensors` with the names and shapes of the released HDF5 file, or with `hdf5` that
    file; also `options.json`, `vocabulary.txt` with one word per line, the tokenizer, and `softmax.safetensors` with
    `W` and `b`. Return the path of the weights."""
    if hdf5:
        import_h5py()  # raises UserError before anything is written
    spec = checkpoint.spec
    record = spec.family.find_input(CharacterInput)
    if record is None or not isinstance(spec.family.first_block.layer, ProjectedLSTMSpec):
        raise UserError(f"{spec.name} is not an ELMo: export it with `megaptm export hf`.")
    weights = {name: tensor.float() for name, tensor in checkpoint.weights().items()}
    tokenizer = load_tokenizer(checkpoint.tokenizer)
    head = "head.bidirectional-lm"
    padded = {"W": weights[f"{head}.table.weight"], "b": weights[f"{head}.vocabulary.bias"]}
    softmax = {name: tensor[: spec.vocabulary].contiguous() for name, tensor in padded.items()}
    words = [tokenizer.name(id_) for id_ in range(spec.vocabulary)]
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / OPTIONS, json.dumps(bilm_options(spec), indent=1).encode() + b"\n")
    write_atomically(folder / WORDS, "".join(f"{word}\n" for word in words).encode())
    tokenizer.save(folder)
    write_atomically(folder / SOFTMAX, save(softmax))
    tensors = {name: tensor.to(torch.float32) for name, tensor in to_bilm(weights, spec).items()}
    if hdf5:
        write_hdf5(folder / HDF5, tensors)
        return folder / HDF5
    write_atomically(folder / WEIGHTS, save(tensors))
    return folder / WEIGHTS
