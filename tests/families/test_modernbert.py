"""ModernBERT, Ettin and mmBERT: configs of published models, kinds of layers, and text in a window."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers

from megaptm.config import load_config, resolve_model
from megaptm.config.read import phase_configs
from megaptm.errors import UserError
from megaptm.families import CATALOGUE
from megaptm.hub.huggingface import describe_config, hugging_face_config
from megaptm.models.model import Model
from megaptm.spec import ModelSpec, change, published_spec, with_attention_options
from tests.models.tiny import tiny_model, tiny_spec

OLD_BASE = {
    "model_type": "modernbert",
    "vocab_size": 50368,
    "hidden_size": 768,
    "intermediate_size": 1152,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "max_position_embeddings": 8192,
    "norm_eps": 1e-5,
    "local_attention": 128,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160_000.0,
    "local_rope_theta": 10_000.0,
    "pad_token_id": 50283,
    "position_embedding_type": "absolute",
}
"""Fields of ModernBERT-base's config.json, which an earlier release of transformers wrote."""


def described(config: dict[str, Any], family: str | None = None) -> ModelSpec:
    return describe_config(config, family=family)[1]


def with_window(family: str, window: Any, **options: Any) -> ModelSpec:
    """Return a tiny spec with other options of attention."""
    spec = tiny_spec(family)
    stacks = {
        name: with_attention_options(block, {"window": window, **options}) for name, block in spec.family.stacks.items()
    }
    return replace(spec, family=change(spec.family, stacks=stacks))


@pytest.mark.parametrize(
    ("config", "family", "size"),
    [
        (transformers.ModernBertConfig().to_dict(), "modernbert", "base"),
        (OLD_BASE, "modernbert", "base"),
        (
            OLD_BASE
            | {
                "num_hidden_layers": 28,
                "hidden_size": 1024,
                "intermediate_size": 2624,
                "num_attention_heads": 16,
            },
            "modernbert",
            "large",
        ),
    ],
)
def test_published_configs_are_the_published_sizes(config: dict[str, Any], family: str, size: str) -> None:
    spec = described(config)
    assert spec.size == CATALOGUE[family].sizes[size]
    assert spec.family.stacks == CATALOGUE[family].stacks
    assert (spec.vocabulary, spec.context) == (50368, 8192)


@pytest.mark.parametrize("family", ["modernbert", "ettin", "ettin-decoder", "mmbert"])
def test_config_describes_the_family_again(family: str) -> None:
    spec = published_spec(CATALOGUE[family], next(iter(CATALOGUE[family].sizes)))
    again = described(hugging_face_config(spec).to_dict())
    assert again.name == family
    assert again.family.stacks == spec.family.stacks
    assert (again.size, again.vocabulary, again.context) == (spec.size, spec.vocabulary, spec.context)


def test_window_of_the_decoder_is_half_of_the_field() -> None:
    """The field is the window of the encoder of the same shape; the class halves it."""
    config = hugging_face_config(published_spec(CATALOGUE["ettin-decoder"], "17m"))
    assert (config.local_attention, config.sliding_window) == (128, 64)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"global_attn_every_n_layers": 2}, "global_attn_every_n_layers is 2"),
        ({"local_attention": 127}, "local_attention is '127'; it must be an even number"),
        ({"global_rope_theta": -1.0}, "rope_parameters is .*; it must be a positive rope_theta"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}},
            "rope_parameters is .*; it must be a positive rope_theta",
        ),
        ({"norm_bias": True}, "norm_bias is True"),
        ({"mlp_dropout": 0.1}, "mlp_dropout is 0.1"),
    ],
)
def test_other_fields_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        described(OLD_BASE | fields)


def test_options_that_differ_among_windows_are_not_exported() -> None:
    with pytest.raises(UserError, match=r"model\.attention has options that differ among layers with a window"):
        hugging_face_config(with_window("modernbert", [4, 4, 6]))


def test_first_layer_has_no_norm_before_attention() -> None:
    names = {name for name, _ in tiny_model("modernbert", layers=3).named_parameters()}
    assert "encoder.0.attention_norm.weight" not in names
    assert {"encoder.0.ffn_norm.weight", "encoder.1.attention_norm.weight", "embed.norm.weight"} <= names


@pytest.mark.parametrize(
    "change_of_block", [{"norm": {"position": "post"}}, {"sharing": {"sublayers": ("attention",)}}]
)
def test_stack_without_its_first_norm_is_pre_norm(change_of_block: dict[str, Any]) -> None:
    spec = tiny_spec("modernbert")
    stacks = {"encoder": change(spec.family.last_block, **change_of_block)}
    with torch.device("meta"), pytest.raises(UserError, match=r"Block.norm.first is false"):
        Model(replace(spec, family=change(spec.family, stacks=stacks)))


@pytest.mark.parametrize(("family", "attended"), [("modernbert", range(6, 15)), ("ettin-decoder", range(7, 11))])
def test_layer_attends_to_its_window(family: str, attended: range) -> None:
    """A window of 8 has 4 positions on each side; one of 4 in a decoder has 3 before and the own."""
    spec = with_window(family, 8 if family == "modernbert" else 4)
    block = change(spec.family.last_block, attention=spec.family.last_block.attentions[1])
    name = next(iter(spec.family.stacks))
    spec = replace(spec, family=change(spec.family, stacks={name: block}), size=change(spec.size, layers=1))
    model = Model(spec)
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0, 0.5)
    tokens = torch.arange(1, 21)[None]
    logits = model.eval().logits({"tokens": tokens})[spec.family.heads[0]][0, 10]
    changed = []
    for position in range(20):
        other = tokens.clone()
        other[0, position] = 90
        if not torch.equal(model.logits({"tokens": other})[spec.family.heads[0]][0, 10], logits):
            changed.append(position)
    assert changed == [*attended]


def test_phases_change_the_base_of_global_layers() -> None:
    bases = [
        [record.rope_base for record in resolve_model(phase).family.last_block.attentions]
        for phase in phase_configs(load_config("modernbert/base-phases"))
    ]
    extended = [160_000.0, 10_000.0, 10_000.0]
    assert bases == [[10_000.0] * 3, extended, extended]


@pytest.mark.parametrize(
    ("name", "key", "message"),
    [
        ("bert/base", "rope_base=1.0e4", r"model\.attention\.rope_base is no option of the attention of bert/base"),
        ("modernbert/base", "rope_base=0", r"model\.attention\.rope_base \(0\): input should be greater than 0"),
        ("modernbert/base", "window=127", r"model\.attention\.window \(127\) must be even"),
    ],
)
def test_invalid_options_are_rejected(name: str, key: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_config(name, [f"model.attention.{key}"])
