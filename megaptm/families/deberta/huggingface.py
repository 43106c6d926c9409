"""Hugging Face's DeBERTa: `DebertaForMaskedLM`, `DebertaV2ForMaskedLM`. Both lack a mask decoder: the output is that
of the last layer, run once.

DeBERTa-v3 consists of two models: the discriminator, exported as a bare `DebertaV2Model`, and the generator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megaptm.families.bert.huggingface import BERT
from megaptm.hub.counterpart import Counterpart
from megaptm.hub.tensor_rules import KV, QKV, VOCABULARY, Conversion, TensorRule, rules_for_stack, weight_and_bias
from megaptm.spec import ModelSpec, change

if TYPE_CHECKING:
    from megaptm.hub.imported_weights import ImportedModel


def _decodes_masks(spec: ModelSpec) -> bool:
    """Whether a DeBERTa ends with a mask decoder."""
    return spec.family.last_block != spec.family.last_block.for_encoding


LAYER = "deberta.encoder.layer.{n}"
SELF = f"{LAYER}.attention.self"
# Columns (neighbor, D) against [outputs, D, neighbors].
CONVOLUTION = Conversion(
    lambda w, spec: [w.unflatten(1, (3, -1)).transpose(1, 2)],
    lambda ws, spec: ws[0].transpose(1, 2).flatten(1),
)
COMMON = (
    TensorRule("embed.token.weight", ("deberta.embeddings.word_embeddings.weight",), VOCABULARY),
    *weight_and_bias("embed.norm", "deberta.embeddings.LayerNorm"),
    TensorRule("encoder.distance_table.weight", ("deberta.encoder.rel_embeddings.weight",)),
    *weight_and_bias("encoder.{n}.attention.output", f"{LAYER}.attention.output.dense"),
    *weight_and_bias("encoder.{n}.attention_norm", f"{LAYER}.attention.output.LayerNorm"),
    *weight_and_bias("encoder.{n}.ffn.up", f"{LAYER}.intermediate.dense"),
    *weight_and_bias("encoder.{n}.ffn.down", f"{LAYER}.output.dense"),
    *weight_and_bias("encoder.{n}.ffn_norm", f"{LAYER}.output.LayerNorm"),
    *weight_and_bias("head.mlm.transform", "cls.predictions.transform.dense"),
    *weight_and_bias("head.mlm.norm", "cls.predictions.transform.LayerNorm"),
    TensorRule("head.mlm.vocabulary.bias", ("cls.predictions.bias",), VOCABULARY),
)
# As in the released checkpoints, where transformers ignores it.
POSITIONS = TensorRule(
    "encoder.place_table.weight", ("deberta.embeddings.position_embeddings.weight",), when=_decodes_masks, optional=True
)
V1 = (
    TensorRule("encoder.{n}.attention.qkv.weight", (f"{SELF}.in_proj.weight",)),
    TensorRule("encoder.{n}.attention.biases.bias", (f"{SELF}.q_bias", f"{SELF}.v_bias"), KV),
    TensorRule("encoder.{n}.attention.position_key.weight", (f"{SELF}.pos_proj.weight",)),
    *weight_and_bias("encoder.{n}.attention.position_query", f"{SELF}.pos_q_proj"),
)
V3 = (
    *weight_and_bias(
        "encoder.{n}.attention.qkv",
        f"{SELF}.query_proj",
        f"{SELF}.key_proj",
        f"{SELF}.value_proj",
        weight=QKV,
        bias=QKV,
    ),
    *weight_and_bias("encoder.distance_norm", "deberta.encoder.LayerNorm"),
)
V2 = (
    *V3,
    TensorRule("encoder.convolution.map.weight", ("deberta.encoder.conv.conv.weight",), CONVOLUTION),
    TensorRule("encoder.convolution.map.bias", ("deberta.encoder.conv.conv.bias",)),
    *weight_and_bias("encoder.convolution.norm", "deberta.encoder.conv.LayerNorm"),
)


def _max_distance(config: Mapping[str, Any]) -> Any:
    """Return the maximum distance of DeBERTa's Hugging Face config; values below 1 mean the number of positions."""
    distance = config["max_relative_positions"]
    return config.get("max_position_embeddings") if type(distance) is int and distance < 1 else distance


def _score_terms(config: Mapping[str, Any]) -> Any:
    """Return the terms of DeBERTa's attention scores besides content in a Hugging Face config: a list, or as released
    `c2p|p2c`."""
    terms = config["pos_att_type"]
    terms = terms.lower().split("|") if isinstance(terms, str) else terms
    return sorted(str(term).strip() for term in terms) if isinstance(terms, list) else terms


def _drop_absent_mask_decoder(model: ImportedModel, folder: Path | None) -> ImportedModel:
    """Return the imported DeBERTa without a mask decoder if the files lack its position table, as the class of
    `transformers` computes it."""
    if not any(name.endswith(".place_table.weight") for name in model.absent):
        return model
    stacks = {name: block.for_encoding for name, block in model.spec.family.stacks.items()}
    absent = {name: shape for name, shape in model.absent.items() if not name.endswith(".place_table.weight")}
    return replace(model, spec=replace(model.spec, family=change(model.spec.family, stacks=stacks)), absent=absent)


def _without_mask_decoder(spec: ModelSpec) -> str:
    if not _decodes_masks(spec):
        return ""
    return (
        "transformers has no mask decoder: hidden states are equal, but predicts masked tokens worse; use "
        "`megaptm generate`."
    )


# The classes read these without declaring them.
V2_FIELDS = ("attention_head_size", "conv_groups")
RELEASED_HEAD = "lm_predictions.lm_head"

DEBERTA = Counterpart(
    family="deberta",
    model="DebertaForMaskedLM",
    fields=BERT.fields,
    fixed={
        "hidden_act": "gelu",
        "type_vocab_size": 0,
        "relative_attention": True,
        "max_relative_positions": 512,
        "position_biased_input": False,
        "pos_att_type": ["c2p", "p2c"],
        "tie_word_embeddings": True,
        "embedding_size": lambda config: config["hidden_size"],
        "talking_head": False,
    },
    optional_fields=frozenset(("embedding_size", "talking_head", *V2_FIELDS)),
    normalizers={"max_relative_positions": _max_distance, "pos_att_type": _score_terms},
    rules=(*COMMON, *V1, POSITIONS),
    tied={
        "cls.predictions.decoder.weight": "deberta.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
        f"{RELEASED_HEAD}.bias": "cls.predictions.bias",
        **{
            f"{RELEASED_HEAD}.{name}": f"cls.predictions.transform.{name}"
            for name in ("dense.weight", "dense.bias", "LayerNorm.weight", "LayerNorm.bias")
        },
    },
    prefix="deberta.",
    complete_model=_drop_absent_mask_decoder,
    warning=_without_mask_decoder,
    special_ids={"pad_token_id": 0},
)

DEBERTA_V2 = replace(
    DEBERTA,
    family="deberta-v2",
    model="DebertaV2ForMaskedLM",
    model_type="deberta-v2",
    fixed=DEBERTA.fixed
    | {
        "position_buckets": 256,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "conv_kernel_size": 3,
        "conv_act": "gelu",
        "conv_groups": 1,
        "attention_head_size": lambda config: config["hidden_size"] // config["num_attention_heads"],
    },
    rules=(*COMMON, *V2, POSITIONS),
)

GENERATOR: Counterpart = replace(
    DEBERTA_V2,
    family="deberta-v3",
    stack="generator",
    fixed={name: value for name, value in DEBERTA_V2.fixed.items() if name not in ("conv_act", "conv_groups")}
    | {"conv_kernel_size": 0},
    rules=rules_for_stack((*COMMON, *V3, POSITIONS), "generator"),
)
# `DebertaV2Model` has no head for replaced tokens and ignores megaptm's, which has ELECTRA's names. The head of
# released checkpoints differs: it adds the output at the first position to all others.
DISCRIMINATOR: Counterpart = replace(
    GENERATOR,
    stack="discriminator",
    model="DebertaV2Model",
    warning=lambda spec: (
        "DebertaV2Model has no head for replaced tokens: it ignores the weights named discriminator_predictions.*."
    ),
    rules=(
        *rules_for_stack((rule for rule in (*COMMON, *V3) if not rule.name.startswith("head.")), "discriminator"),
        *weight_and_bias("head.replaced-token.transform", "discriminator_predictions.dense"),
        *weight_and_bias("head.replaced-token.classify", "discriminator_predictions.dense_prediction"),
    ),
    tied={},
    unused_prefixes=("mask_predictions.", "lm_predictions.", "deberta.embeddings.position_embeddings."),
)

COUNTERPARTS = (DEBERTA, DEBERTA_V2, DISCRIMINATOR, GENERATOR)
