"""Hugging Face's ALBERT: `AlbertForPreTraining`, whose layers are numbered by group and index within it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from megaptm.errors import UserError
from megaptm.families.bert.huggingface import BERT
from megaptm.hub.counterpart import Counterpart
from megaptm.hub.tensor_rules import QKV, VOCABULARY, TensorRule, weight_and_bias
from megaptm.spec import ModelSpec

SHARED = "encoder.shared.{n}"
LAYER = "albert.encoder.albert_layer_groups.{group}.albert_layers.{turn}"


def count_labels(config: Mapping[str, Any]) -> int:
    """Return the number of labels of ALBERT's Hugging Face config; the default is two."""
    named = config.get("id2label")
    return len(named) if isinstance(named, Mapping) else 2


def _contradictions(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a reason against importing an ALBERT whose tables and layers have the same width. `AlbertForPreTraining`
    then has a projection between them, and megaptm's model has none."""
    if config["embedding_size"] == config["hidden_size"]:
        yield (
            f"embedding_size and hidden_size are both {config['hidden_size']} (albert has no projection between "
            "embeddings and layers of equal width)"
        )


def _count_rounds(layers: int, groups: int, cycle: int) -> int:
    """Return the field `num_hidden_layers`: layers, with a cycle of different ones counted once. Raise UserError unless
    groups have equal size, a multiple of the cycle."""
    if layers % (groups * cycle):
        raise UserError(
            f"AlbertForPreTraining needs a number of layers that is a multiple of {groups} groups x {cycle} layers per "
            f"group, but has {layers}: this model can be neither exported nor imported."
        )
    return layers // cycle


def _further_values(spec: ModelSpec) -> dict[str, Any]:
    sharing = spec.family.first_block.sharing
    return {"rounds": _count_rounds(spec.size.layers, sharing.groups, sharing.cycle)}


def _read_values(counterpart: Counterpart, values: dict[str, Any]) -> dict[str, Any]:
    layers = values["rounds"] * values["cycle"]
    _count_rounds(layers, values["groups"], values["cycle"])
    return values | {"layers": layers}


ALBERT = Counterpart(
    family="albert",
    model="AlbertForPreTraining",
    fields={
        **{field: name for field, name in BERT.fields.items() if name != "layers"},
        "num_hidden_layers": "rounds",
        "num_hidden_groups": "groups",
        "inner_group_num": "cycle",
        "embedding_size": "embedding",
    },
    fixed={"hidden_act": "gelu_new", "type_vocab_size": 2, "tie_word_embeddings": True, "id2label": 2},
    normalizers={"id2label": count_labels},
    optional_fields=frozenset(("id2label",)),
    further_values=_further_values,
    read_values=_read_values,
    contradictions=_contradictions,
    rules=(
        TensorRule("embed.token.weight", ("albert.embeddings.word_embeddings.weight",), VOCABULARY),
        TensorRule("embed.position.weight", ("albert.embeddings.position_embeddings.weight",)),
        TensorRule("embed.segment.weight", ("albert.embeddings.token_type_embeddings.weight",)),
        *weight_and_bias("embed.norm", "albert.embeddings.LayerNorm"),
        *weight_and_bias("embed.widen", "albert.encoder.embedding_hidden_mapping_in"),
        *weight_and_bias(
            f"{SHARED}.attention.qkv",
            *(f"{LAYER}.attention.{name}" for name in ("query", "key", "value")),
            weight=QKV,
            bias=QKV,
        ),
        *weight_and_bias(f"{SHARED}.attention.output", f"{LAYER}.attention.dense"),
        *weight_and_bias(f"{SHARED}.attention_norm", f"{LAYER}.attention.LayerNorm"),
        *weight_and_bias(f"{SHARED}.ffn.up", f"{LAYER}.ffn"),
        *weight_and_bias(f"{SHARED}.ffn.down", f"{LAYER}.ffn_output"),
        *weight_and_bias(f"{SHARED}.ffn_norm", f"{LAYER}.full_layer_layer_norm"),
        *weight_and_bias("head.mlm.transform", "predictions.dense"),
        *weight_and_bias("head.mlm.norm", "predictions.LayerNorm"),
        TensorRule("head.mlm.vocabulary.bias", ("predictions.bias",), VOCABULARY),
        *weight_and_bias("head.sentence-order.pooler", "albert.pooler"),
        *weight_and_bias("head.sentence-order.classify", "sop_classifier.classifier"),
    ),
    tied={
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    prefix="albert.",
    special_ids={"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3},
)

COUNTERPARTS = (ALBERT,)
