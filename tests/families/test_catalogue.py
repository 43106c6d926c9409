"""The tables are complete, and a word that no brick knows is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from megaptm.errors import UserError
from megaptm.families import CATALOGUE
from megaptm.families.bert import BERT
from megaptm.families.gpt import GPT2, GPT3
from megaptm.models import build_model, initial_value
from megaptm.objectives import OBJECTIVES
from megaptm.spec import Family, change, published


@pytest.mark.parametrize("family", CATALOGUE.values(), ids=CATALOGUE)
def test_objectives_exist_and_their_losses_have_heads(family: Family) -> None:
    for name in family.objectives:
        assert set(OBJECTIVES[name].losses) <= set(family.heads)


@pytest.mark.parametrize("family", CATALOGUE.values(), ids=CATALOGUE)
def test_heads_divide_the_width_where_the_table_names_no_head_width(family: Family) -> None:
    for size in family.sizes.values():
        assert size.head_width is not None or size.width % size.heads == 0


def test_gpt3_is_gpt2_with_other_numbers() -> None:
    assert GPT3.stacks == GPT2.stacks
    assert GPT3.context == 2048


def test_the_token_table_is_padded_the_same_on_every_layout() -> None:
    assert published(GPT2, "small").padded_vocabulary == 50_304
    assert published(BERT, "base").padded_vocabulary == 30_592


def with_word(**words: Any) -> dict:
    """A GPT-2 that has another word in a slot."""
    return {"stacks": {"decoder": change(GPT2.last_block, **words)}}


@pytest.mark.parametrize(
    ("differences", "said"),
    [
        (with_word(attention="linear"), r"Block.attention is 'linear'.*AttentionSpec"),
        (with_word(visibility="backwards"), r"Block.visibility is 'backwards'.*'full', 'causal'"),
        (with_word(norm={"position": "sandwich"}), "Block.norm.position is 'sandwich'"),
        (with_word(ffn={"activation": "relu2"}), "Block.ffn.activation is 'relu2'"),
        (with_word(position="alibi"), "Block.position is 'alibi'"),
        ({"heads": ("lm", "sop")}, r"heads \['sop'\] are unknown"),
        ({"inputs": ("token", "rotary")}, r"inputs \['rotary'\] are unknown"),
        ({"logit_scale": "half"}, "logit_scale is 'half'"),
        ({"heads": ("mlm",), **with_word(ffn={"activation": "swiglu"})}, "no gated form"),
        ({"heads": ("mlm",), "tied": False}, "set tied=True"),
    ],
)
def test_a_word_that_no_brick_knows_is_refused(differences: dict, said: str) -> None:
    with torch.device("meta"), pytest.raises(UserError, match=said):
        build_model(published(change(GPT2, **differences), "small"))


def test_an_unknown_rule_of_initial_values_is_refused() -> None:
    spec = published(change(GPT2, init="xavier"), "small")
    with pytest.raises(UserError, match=r"init is 'xavier'.*normal, gpt2, t5"):
        initial_value(spec, "embed.position.weight", (4, 4), seed=0)


@pytest.mark.parametrize("name", ["objectives", "heads", "inputs"])
def test_a_forgotten_comma_is_not_read_letter_by_letter(name: str) -> None:
    with pytest.raises(UserError, match=rf'family bert: {name}=\("token"\) is one word, no tuple: write \("token",\)'):
        replace(CATALOGUE["bert"], **{name: "token"})
