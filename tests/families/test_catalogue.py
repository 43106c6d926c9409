"""Completeness of the families' tables, and refusal of unknown values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from megaptm.errors import UserError
from megaptm.families import CATALOGUE
from megaptm.families.bert import BERT
from megaptm.families.gpt import GPT2, GPT3
from megaptm.models.initial import initial_value
from megaptm.models.model import Model
from megaptm.objectives import OBJECTIVES
from megaptm.spec import Family, TransformSpec, change, published_spec


@pytest.mark.parametrize("family", CATALOGUE.values(), ids=CATALOGUE)
def test_family_has_heads_for_its_objectives(family: Family) -> None:
    for name in family.objectives:
        assert set(OBJECTIVES[name].losses) <= set(family.heads)


@pytest.mark.parametrize("family", CATALOGUE.values(), ids=CATALOGUE)
def test_heads_divide_width(family: Family) -> None:
    for size in family.sizes.values():
        assert size.head_width is not None or size.width % size.heads == 0


def test_gpt3_has_the_stacks_of_gpt2() -> None:
    assert GPT3.stacks == GPT2.stacks
    assert GPT3.context == 2048


def test_padded_vocabulary() -> None:
    assert published_spec(GPT2, "small").padded_vocabulary == 50_304
    assert published_spec(BERT, "base").padded_vocabulary == 30_592


def with_option(**options: Any) -> dict:
    """Return changes to GPT-2's block."""
    return {"stacks": {"decoder": change(GPT2.last_block, **options)}}


@pytest.mark.parametrize(
    ("differences", "message"),
    [
        (with_option(attention="linear"), r"Block.attention is 'linear'.*AttentionSpec"),
        (with_option(visibility="backwards"), r"Block.visibility is 'backwards'.*'full', 'causal'"),
        (with_option(norm={"position": "middle"}), "Block.norm.position is 'middle'"),
        (with_option(ffn={"activation": "relu2"}), "Block.ffn.activation is 'relu2'"),
        (with_option(position="alibi"), "Block.position is 'alibi'"),
        ({"heads": ("lm", "sop")}, r"heads \['sop'\] are unknown"),
        ({"inputs": (*GPT2.inputs, "rotary")}, "inputs has 'rotary', which is no InputSpec"),
        ({"output": {"scale": "half"}}, "output.scale is 'half'"),
        ({"output": {"transform": TransformSpec()}, **with_option(ffn={"activation": "swiglu"})}, "no gated form"),
    ],
)
def test_unknown_value_is_refused(differences: dict, message: str) -> None:
    with torch.device("meta"), pytest.raises(UserError, match=message):
        Model(published_spec(change(GPT2, **differences), "small"))


def test_unknown_init_is_refused() -> None:
    spec = published_spec(change(GPT2, init={"rule": "xavier"}), "small")
    with pytest.raises(UserError, match=r"init.rule is 'xavier'.*normal, gpt2, truncated-gpt2, t5"):
        initial_value(spec, "embed.position.weight", (4, 4), seed=0)


@pytest.mark.parametrize("name", ["objectives", "heads", "inputs"])
def test_string_instead_of_tuple_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=rf'family bert: {name}=\("token"\) is one word, no tuple: write \("token",\)'):
        replace(CATALOGUE["bert"], **{name: "token"})
