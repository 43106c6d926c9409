"""Variants beyond the catalogue: parameter counts and pipeline parts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from megaptm.errors import UserError
from megaptm.models.chunk import model_chunks
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.plan.count import count_parameters
from megaptm.spec import ModelSpec, change
from tests.models.grammar import VARIANTS, variant
from tests.models.test_parts import assert_parts_equal_model
from tests.models.tiny import tiny_batch, tiny_spec

TABLES = ("embed.token.weight", "head.lm.table.weight", "head.mlm.vocabulary.bias")
"""Tables with padding of the vocabulary."""


def spec_of(name: str, layers: int = 4) -> ModelSpec:
    base = VARIANTS[name].base
    return variant(tiny_spec(base, layers=layers // 2 if base == "t5" else layers), name)


@pytest.mark.parametrize("name", VARIANTS)
def test_parameter_count_equals_built_model(name: str) -> None:
    spec = spec_of(name)
    parameters = dict(Model(spec).named_parameters())
    padding = sum(parameters[table][spec.vocabulary :].numel() for table in TABLES if table in parameters)
    assert sum(map(torch.numel, parameters.values())) - padding == count_parameters(spec, with_heads=True)


@pytest.mark.parametrize("num_parts", [2, 4])
@pytest.mark.parametrize("name", VARIANTS)
def test_parts_equal_the_model(name: str, num_parts: int) -> None:
    model = Model(spec_of(name)).eval()
    init_weights(model, seed=7)
    batch = tiny_batch(VARIANTS[name].base)
    if "sentence-order" in model.spec.family.heads:
        batch["sentence_order"] = torch.tensor([0, 1, -100])
    if "pairs" in model.spec.family.heads:
        batch["pairs"] = torch.tensor([0, -100, 0])
    if "infomax" in model.spec.family.heads:
        batch["ngram_start"] = torch.tensor([4, -100, 6])
    for prefix, block in zip(model.spec.family.prefixes.values(), model.spec.family.stacks.values(), strict=True):
        if "window" in block.kinds:
            batch[f"{prefix}global_tokens"] = (batch[f"{prefix}tokens"] % 5 == 0).long()
    assert_parts_equal_model(model, batch, num_parts)


def test_shared_layers_have_one_set_of_parameters() -> None:
    names = {name for name, _ in Model(spec_of("shared-layers")).named_parameters() if "encoder" in name}
    assert names
    assert all(name.startswith("encoder.shared.0.") for name in names)
    groups = {
        name.split(".")[2]
        for name, _ in Model(spec_of("shared-attention-2-groups")).named_parameters()
        if "shared" in name
    }
    assert groups == {"0", "2"}


def test_options_alternate_between_layers() -> None:
    block = spec_of("alternating-ffn").family.last_block
    assert [block.at(layer).ffn.activation for layer in range(3)] == ["gelu", "swiglu", "gelu"]


def test_head_is_in_the_part_of_its_layer() -> None:
    spec = spec_of("early-exit")
    assert [chunk.heads for chunk in model_chunks(spec, 4)] == [(), ("exit",), (), ("lm",)]
    assert [chunk.heads for chunk in model_chunks(spec, 1)] == [("lm", "exit")]
    pieces = [Model(spec, chunk) for chunk in model_chunks(spec, 4)]
    tables = [{name for name, _ in piece.named_parameters() if name == "embed.token.weight"} for piece in pieces]
    assert list(map(bool, tables)) == [True, True, False, True]


def test_head_rejects_missing_and_divided_layers() -> None:
    def reading(*layers: str) -> ModelSpec:
        spec = spec_of("early-exit")
        return replace(spec, family=change(spec.family, reads={"exit": layers}))

    with pytest.raises(UserError, match="head exit reads layer 4 of the decoder, which has 0 to 3"):
        Model(reading("decoder.4"))
    assert Model(reading("decoder.0", "decoder.1")).head is not None
    with pytest.raises(UserError, match=r"head exit reads layers that lie in several of 4 pipeline chunks: lower"):
        model_chunks(reading("decoder.0", "decoder.1"), 4)
