"""Hugging Face's ModernBERT, Ettin and mmBERT: `ModernBertForMaskedLM` and `ModernBertDecoderForCausalLM`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from megaptm.errors import UserError
from megaptm.families.modernbert import MODERNBERT as FAMILY
from megaptm.hub.counterpart import Counterpart, is_even, is_number
from megaptm.hub.tensor_rules import (
    JOINED_GATE_AND_VALUE,
    JOINED_QKV,
    QKV,
    VOCABULARY,
    TensorRule,
)
from megaptm.spec import Block, ModelSpec, SlidingWindowSpec

GLOBAL, LOCAL = "full_attention", "sliding_attention"
BASE_FIELDS = {GLOBAL: "global_rope_theta", LOCAL: "local_rope_theta"}
"""Fields of the RoPE base of each kind of layer in the configs of earlier releases of transformers."""
DEFAULT_BASES = {GLOBAL: 160_000.0, LOCAL: 10_000.0}


def _kinds(records: Iterable[Any]) -> list[str]:
    return [LOCAL if isinstance(record, SlidingWindowSpec) else GLOBAL for record in records]


TURNS = _kinds(FAMILY.last_block.attentions)


def _layer_types(config: Mapping[str, Any]) -> list[str]:
    return [TURNS[layer % len(TURNS)] for layer in range(config["num_hidden_layers"])]


def _read_bases(config: Mapping[str, Any]) -> Any:
    """Return the bases of a config of any release: kind of layer -> parameters of its rotary positions."""
    if (own := config.get("rope_parameters")) is not None:
        return own
    return {
        kind: {"rope_type": "default", "rope_theta": config.get(field, DEFAULT_BASES[kind])}
        for kind, field in BASE_FIELDS.items()
    }


def _are_bases(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and {*value} == {*TURNS}
        and all(
            isinstance(own, Mapping)
            and own.get("rope_type", "default") == "default"
            and is_number(own.get("rope_theta"))
            and own["rope_theta"] > 0
            for own in value.values()
        )
    )


def _further_values(spec: ModelSpec) -> dict[str, Any]:
    """Return the window, and the bases of rotary positions by kind of layer, which must be equal in all such layers."""
    block: Block = spec.family.first_block
    by_kind: dict[str, Any] = {}
    for record, kind in zip(block.attentions, _kinds(block.attentions), strict=True):
        if by_kind.setdefault(kind, record) != record:
            raise UserError(
                "model.attention has options that differ among layers with a window, or among those without: "
                f"{spec.name} at Hugging Face has one value for each kind. Use `megaptm.load(RUN)` in Python."
            )
    window = by_kind[LOCAL].window
    return {
        "window": 2 * window if block.causal else window,
        "rope_base": {
            kind: {"rope_type": "default", "rope_theta": record.rope_base} for kind, record in by_kind.items()
        },
    }


def _read_values(counterpart: Counterpart, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of ModernBERT's Hugging Face config with the RoPE bases of the kinds of layers, in turn. The
    window of a decoder is half of the config's."""
    bases = tuple(float(values["rope_base"][kind]["rope_theta"]) for kind in TURNS)
    causal = counterpart.family_table.first_block.causal
    return values | {"rope_base": bases, "window": values["window"] // 2 if causal else values["window"]}


def _rules(stack: str) -> tuple[TensorRule, ...]:
    """Return the tensor rules of a stack, without those of projections of attention and heads."""
    layer = "model.layers.{n}"
    return (
        TensorRule("embed.token.weight", ("model.embeddings.tok_embeddings.weight",), VOCABULARY),
        TensorRule("embed.norm.weight", ("model.embeddings.norm.weight",)),
        TensorRule(
            f"{stack}.{{n}}.attention_norm.weight",
            (f"{layer}.attn_norm.weight",),
            when_block=lambda block: block.norm.first,
        ),
        TensorRule(f"{stack}.{{n}}.attention.output.weight", (f"{layer}.attn.Wo.weight",)),
        TensorRule(f"{stack}.{{n}}.ffn_norm.weight", (f"{layer}.mlp_norm.weight",)),
        TensorRule(f"{stack}.{{n}}.ffn.up.weight", (f"{layer}.mlp.Wi.weight",), JOINED_GATE_AND_VALUE),
        TensorRule(f"{stack}.{{n}}.ffn.down.weight", (f"{layer}.mlp.Wo.weight",)),
        TensorRule(f"{stack}.final.weight", ("model.final_norm.weight",)),
    )


def _head(name: str, hf_name: str) -> tuple[TensorRule, ...]:
    return (
        TensorRule(f"head.{name}.transform.weight", (f"{hf_name}.dense.weight",)),
        TensorRule(f"head.{name}.norm.weight", (f"{hf_name}.norm.weight",)),
        TensorRule(f"head.{name}.vocabulary.bias", ("decoder.bias",), VOCABULARY),
    )


MODERNBERT = Counterpart(
    family="modernbert",
    model="ModernBertForMaskedLM",
    fields={
        "num_hidden_layers": "layers",
        "hidden_size": "width",
        "num_attention_heads": "heads",
        "intermediate_size": "ffn",
        "vocab_size": "vocabulary",
        "max_position_embeddings": "context",
        "norm_eps": "norm_eps",
        "local_attention": "window",
        "rope_parameters": "rope_base",
    },
    checks={
        "window": ("an even number", is_even),
        "rope_base": ("a positive rope_theta of rope_type default for each kind of layer", _are_bases),
    },
    derived={"rope_parameters": _read_bases},
    further_values=_further_values,
    read_values=_read_values,
    dropout_fields={"embedding_dropout": "dropout", "attention_dropout": "attention_dropout"},
    fixed={
        "hidden_activation": "gelu",
        "norm_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
        "mlp_dropout": 0.0,
        "decoder_bias": True,
        "classifier_bias": False,
        "classifier_activation": "gelu",
        "tie_word_embeddings": True,
        "layer_types": _layer_types,
        "global_attn_every_n_layers": len(TURNS),
    },
    # The class derives the first, and has the second only in files of earlier releases.
    optional_fields=frozenset({"layer_types", "global_attn_every_n_layers"}),
    rules=(
        *_rules("encoder"),
        TensorRule("encoder.{n}.attention.qkv.weight", ("model.layers.{n}.attn.Wqkv.weight",), JOINED_QKV),
        *_head("mlm", "head"),
    ),
    tied={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    prefix="model.",
    special_ids={"bos_token_id": 50281, "eos_token_id": 50282, "pad_token_id": 50283},
)

ETTIN_DECODER = replace(
    MODERNBERT,
    family="ettin-decoder",
    model="ModernBertDecoderForCausalLM",
    model_type="modernbert-decoder",
    unknown_id=0,
    rules=(
        *_rules("decoder"),
        TensorRule(
            "decoder.{n}.attention.qkv.weight",
            tuple(f"model.layers.{{n}}.attn.{name}_proj.weight" for name in "qkv"),
            QKV,
        ),
        *_head("lm", "lm_head"),
    ),
)

# Of equal shape: a config that names no family is read as ModernBERT's.
ETTIN = replace(MODERNBERT, family="ettin", model_type="modernbert")
MMBERT = replace(ETTIN, family="mmbert", special_ids={"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0})

COUNTERPARTS = (MODERNBERT, ETTIN_DECODER, ETTIN, MMBERT)
