"""Conversion of ELMo weights to and from the names of the released code (allenai/bilm-tf)."""

# I inputs of a linear layer, O outputs

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from megaptm.batch import MAX_WORD_LENGTH, NUM_CHARACTERS
from megaptm.spec import ModelSpec

STACKS = ("forwards", "backwards")
INPUT = "embed.token"


def pairs(spec: ModelSpec) -> Iterator[tuple[str, str, tuple[int, ...] | None]]:
    """Yield megaptm's name, the released name, and the released shape, whose last axis is megaptm's first; None: the
    same shape. Cell kernels (`kernels`) and the character table, which has one row less there, are converted
    separately."""
    size = spec.size
    for number, (characters, filters) in enumerate(size.filters):
        kernel = (1, characters, size.character_width, filters)
        yield f"{INPUT}.filters.{number}.weight", f"CNN/W_cnn_{number}", kernel
        yield f"{INPUT}.filters.{number}.bias", f"CNN/b_cnn_{number}", None
    wide = sum(filters for _, filters in size.filters)
    for number in range(size.highway):
        for gate in ("carry", "transform"):
            yield f"{INPUT}.highway.{number}.{gate}.weight", f"CNN_high_{number}/W_{gate}", (wide, wide)
            yield f"{INPUT}.highway.{number}.{gate}.bias", f"CNN_high_{number}/b_{gate}", None
    yield f"{INPUT}.out.weight", "CNN_proj/W_proj", (wide, size.width)
    yield f"{INPUT}.out.bias", "CNN_proj/b_proj", None
    for ours, theirs in kernels(spec):
        yield f"{ours}.input.bias", f"{theirs}/B", None
        yield f"{ours}.projection.weight", f"{theirs}/W_P_0", (size.ffn, size.width)


def kernels(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    """Yield megaptm's and the released names of cells. Rows of the released kernel `W_0` are inputs, then state."""
    for direction, stack in enumerate(STACKS):
        for layer in range(spec.size.layers):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            yield f"{stack}.{layer}.recurrent", cell


def to_bilm(weights: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """Return all tensors that the released code reads; it does not read the softmax."""
    found = {"char_embed": weights[f"{INPUT}.characters.weight"][1:]}
    for ours, theirs, shape in pairs(spec):
        found[theirs] = weights[ours] if shape is None else weights[ours].t().reshape(shape)
    for ours, theirs in kernels(spec):
        found[f"{theirs}/W_0"] = torch.cat([weights[f"{ours}.{part}.weight"].t() for part in ("input", "state")])
    return {name: tensor.contiguous() for name, tensor in found.items()}


def from_bilm(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """Return megaptm's weights; the inverse of `to_bilm`."""
    characters = tensors["char_embed"]
    found = {f"{INPUT}.characters.weight": torch.cat([torch.zeros_like(characters[:1]), characters])}
    for ours, theirs, shape in pairs(spec):
        found[ours] = tensors[theirs] if shape is None else tensors[theirs].reshape(-1, shape[-1]).t()
    for ours, theirs in kernels(spec):
        for part, kernel_IO in zip(("input", "state"), tensors[f"{theirs}/W_0"].split(spec.size.width), strict=True):
            found[f"{ours}.{part}.weight"] = kernel_IO.t()
    return {name: tensor.contiguous() for name, tensor in found.items()}


def options(spec: ModelSpec) -> dict[str, Any]:
    """Return the content of the released code's options.json for a model."""
    size, lstm = spec.size, spec.family.first_block.recurrent
    assert lstm is not None
    return {
        "lstm": {
            "use_skip_connections": True,
            "projection_dim": size.width,
            "cell_clip": lstm.cell_clip,
            "proj_clip": lstm.projection_clip,
            "dim": size.ffn,
            "n_layers": size.layers,
        },
        "char_cnn": {
            "activation": "relu",
            "filters": [[*one] for one in size.filters],
            "n_highway": size.highway,
            "embedding": {"dim": size.character_width},
            "n_characters": NUM_CHARACTERS,
            "max_characters_per_token": MAX_WORD_LENGTH,
        },
    }
