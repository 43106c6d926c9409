"""Conversion of ELMo weights to and from the names of the released code (allenai/bilm-tf)."""

# I inputs of a linear layer, O outputs

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from megaptm.families.elmo.spec import MAX_WORD_LENGTH, ProjectedLSTMSpec, character_sizes
from megaptm.families.elmo.spelling import NUM_CHARACTERS
from megaptm.spec import ModelSpec

STACKS = ("forwards", "backwards")
INPUT = "embed.token"


def _parameter_names(spec: ModelSpec) -> Iterator[tuple[str, str, tuple[int, ...] | None]]:
    """Yield names of ELMo's parameters: megaptm's, the released name, and the released shape, whose last axis is
    megaptm's first; None: the same shape. Cell kernels (`_cell_names`) and the character table, which has one row less
    there, are converted separately."""
    size, sizes = spec.size, character_sizes(spec.size)
    for index, (characters, filters) in enumerate(sizes.filters):
        kernel = (1, characters, sizes.width, filters)
        yield f"{INPUT}.filters.{index}.weight", f"CNN/W_cnn_{index}", kernel
        yield f"{INPUT}.filters.{index}.bias", f"CNN/b_cnn_{index}", None
    num_filters = sum(filters for _, filters in sizes.filters)
    for index in range(sizes.highway):
        for gate in ("carry", "transform"):
            yield f"{INPUT}.highway.{index}.{gate}.weight", f"CNN_high_{index}/W_{gate}", (num_filters, num_filters)
            yield f"{INPUT}.highway.{index}.{gate}.bias", f"CNN_high_{index}/b_{gate}", None
    yield f"{INPUT}.out.weight", "CNN_proj/W_proj", (num_filters, size.width)
    yield f"{INPUT}.out.bias", "CNN_proj/b_proj", None
    for name, bilm_name in _cell_names(spec):
        yield f"{name}.input.bias", f"{bilm_name}/B", None
        yield f"{name}.projection.weight", f"{bilm_name}/W_P_0", (size.ffn, size.width)


def _cell_names(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    """Yield megaptm's and the released names of ELMo's cells. Rows of the released kernel `W_0` are inputs, then
    state."""
    for direction, stack in enumerate(STACKS):
        for layer in range(spec.size.layers):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            yield f"{stack}.{layer}.recurrent", cell


def to_bilm(weights: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """Convert ELMo's weights to the released names: return all tensors that the released code reads; it does not read
    the softmax."""
    converted = {"char_embed": weights[f"{INPUT}.characters.weight"][1:]}
    for name, bilm_name, shape in _parameter_names(spec):
        converted[bilm_name] = weights[name] if shape is None else weights[name].t().reshape(shape)
    for name, bilm_name in _cell_names(spec):
        converted[f"{bilm_name}/W_0"] = torch.cat([weights[f"{name}.{part}.weight"].t() for part in ("input", "state")])
    return {name: tensor.contiguous() for name, tensor in converted.items()}


def from_bilm(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """Convert ELMo's weights from the released names to megaptm's; the inverse of `to_bilm`."""
    characters = tensors["char_embed"]
    converted = {f"{INPUT}.characters.weight": torch.cat([torch.zeros_like(characters[:1]), characters])}
    for name, bilm_name, shape in _parameter_names(spec):
        converted[name] = tensors[bilm_name] if shape is None else tensors[bilm_name].reshape(-1, shape[-1]).t()
    for name, bilm_name in _cell_names(spec):
        for part, kernel_IO in zip(("input", "state"), tensors[f"{bilm_name}/W_0"].split(spec.size.width), strict=True):
            converted[f"{name}.{part}.weight"] = kernel_IO.t()
    return {name: tensor.contiguous() for name, tensor in converted.items()}


def bilm_options(spec: ModelSpec) -> dict[str, Any]:
    """Return the content of options.json in ELMo's released format for a model."""
    size, sizes = spec.size, character_sizes(spec.size)
    lstm = cast(ProjectedLSTMSpec, spec.family.first_block.layer)
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
            "filters": [[*pair] for pair in sizes.filters],
            "n_highway": sizes.highway,
            "embedding": {"dim": sizes.width},
            "n_characters": NUM_CHARACTERS,
            "max_characters_per_token": MAX_WORD_LENGTH,
        },
    }
