"""Hugging Face's Reformer: `ReformerModelWithLMHead`. It samples its own rotations in each forward pass, so outputs of
the same weights differ for sequences longer than a chunk. transformers 5 has `lm_head.bias` but does not add it to
logits, unlike version 4."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from megaptm.errors import UserError
from megaptm.families.reformer.spec import LocalSpec, LSHSpec, axial_grid, axial_widths
from megaptm.hub.counterpart import EVEN_NUMBERS, MAX_VALUE, Counterpart, is_count, is_list
from megaptm.hub.folder import CONFIG
from megaptm.hub.tensor_rules import KV, QKV, VOCABULARY, Conversion, TensorRule, weight_and_bias
from megaptm.spec import AttentionSpec, Block, ModelSpec

LAYER = "reformer.encoder.layers.{n}"
ATTENTION = f"{LAYER}.attention.self_attention"
POSITIONS = "reformer.embeddings.position_embeddings.weights"


def _contradictions(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a reason against importing a Reformer whose number of layers differs from the length of the attention
    list."""
    num_layers, kinds = config.get("num_hidden_layers"), config["attn_layers"]
    if num_layers != len(kinds):
        yield f"num_hidden_layers is {num_layers!r}, but attn_layers has {len(kinds)} entries (reformer: one per layer)"


def _further_values(spec: ModelSpec) -> dict[str, Any]:
    """Return the axes of positions, and the kinds and options of attention, from Reformer's Hugging Face config.

    `local_chunk_length`, `lsh_chunk_length`: if no layer has this kind, the length of the other. `num_hashes`,
    `num_buckets`: if no layer hashes, the defaults.
    """
    block, layers = spec.family.first_block, range(spec.size.layers)
    records = [record for layer in layers if isinstance(record := block.attention_at(layer), LocalSpec)]
    lengths = {record.kind: record.chunk_length for record in records}
    hashing = next((record for record in records if isinstance(record, LSHSpec)), LSHSpec())
    buckets = hashing.num_buckets
    return {
        "axial": [*axial_grid(spec)],
        "axial_widths": [*axial_widths(spec)],
        "attention": [record.kind for record in records],
        "num_hashes": hashing.num_hashes,
        "num_buckets": [*buckets] if isinstance(buckets, tuple) else buckets,
        **{f"{kind}_chunk_length": lengths.get(kind, next(iter(lengths.values()), 0)) for kind in ("local", "lsh")},
    }


def _read_attention(block: Block, values: Mapping[str, Any]) -> AttentionSpec | tuple[AttentionSpec, ...]:
    """Return the kinds of attention that Reformer's `attn_layers` lists, as the shortest repeating cycle."""
    factors, bias = values["num_buckets"], block.attentions[0].bias
    kinds = {
        "local": LocalSpec(bias=bias, chunk_length=values["local_chunk_length"]),
        "lsh": LSHSpec(
            bias=bias,
            chunk_length=values["lsh_chunk_length"],
            num_hashes=values["num_hashes"],
            num_buckets=tuple(factors) if isinstance(factors, list | tuple) else factors,
        ),
    }
    layers = [kinds[kind] for kind in values["attention"]]
    cycle = next(n for n in range(1, len(layers) + 1) if layers == [layers[i % n] for i in range(len(layers))])
    return tuple(layers[:cycle]) if cycle > 1 else layers[0]


def _read_values(counterpart: Counterpart, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of Reformer's config, with the number of layers and the grid of positions as a tuple. Raise
    `UserError` if the grid does not fit the context or the width."""
    rows = values["width"] // 4
    widths, pair = (rows, values["width"] - rows), tuple(values["axial_widths"])
    if widths != pair:
        raise UserError(
            f"{CONFIG}: axial_pos_embds_dim is {[*pair]} ({counterpart.family} has {[*widths]} for hidden_size "
            f"{values['width']}); such a model cannot be imported."
        )
    if prod(values["axial"]) != values["context"]:
        raise UserError(
            f"{CONFIG}: the product of axial_pos_shape ({values['axial']}) is not max_position_embeddings "
            f"({values['context']}); restore it."
        )
    return values | {"axial": tuple(values["axial"]), "layers": len(values["attention"])}


def _are_kinds(value: Any) -> bool:
    return is_list(value) and 0 < len(value) <= MAX_VALUE and {*value} <= {"local", "lsh"}


def _are_two_counts(value: Any) -> bool:
    return is_list(value) and len(value) == 2 and all(map(is_count, value))


PAIR = (f"two integers from 1 to {MAX_VALUE:,}", _are_two_counts)
REFORMER = Counterpart(
    family="reformer",
    model="ReformerModelWithLMHead",
    read_attention=_read_attention,
    further_values=_further_values,
    read_values=_read_values,
    checks={
        "attention": ("a list of `local` and `lsh`, one for each layer", _are_kinds),
        "axial": PAIR,
        "axial_widths": PAIR,
        "num_buckets": EVEN_NUMBERS,
    },
    fields={
        "attn_layers": "attention",
        "hidden_size": "width",
        "num_attention_heads": "heads",
        "attention_head_size": "head_width",
        "feed_forward_size": "ffn",
        "vocab_size": "vocabulary",
        "max_position_embeddings": "context",
        "axial_pos_shape": "axial",
        "axial_pos_embds_dim": "axial_widths",
        "local_attn_chunk_length": "local_chunk_length",
        "lsh_attn_chunk_length": "lsh_chunk_length",
        "num_hashes": "num_hashes",
        "num_buckets": "num_buckets",
        "layer_norm_eps": "norm_eps",
        "hidden_dropout_prob": "dropout",
    },
    dropout_fields={"local_attention_probs_dropout_prob": "dropout", "lsh_attention_probs_dropout_prob": "dropout"},
    fixed={
        "hidden_act": "relu",
        "is_decoder": True,
        "axial_pos_embds": True,
        "local_num_chunks_before": 1,
        "local_num_chunks_after": 0,
        "lsh_num_chunks_before": 1,
        "lsh_num_chunks_after": 0,
        "tie_word_embeddings": False,
    },
    contradictions=_contradictions,
    rules=(
        TensorRule("embed.token.weight", ("reformer.embeddings.word_embeddings.weight",), VOCABULARY),
        TensorRule(
            "embed.axial.row.weight",
            (f"{POSITIONS}.0",),
            Conversion(lambda w, _: [w[:, None]], lambda ws, _: ws[0][:, 0]),
        ),
        TensorRule(
            "embed.axial.column.weight", (f"{POSITIONS}.1",), Conversion(lambda w, _: [w[None]], lambda ws, _: ws[0][0])
        ),
        *weight_and_bias("decoder.{n}.attention_norm", f"{LAYER}.attention.layer_norm"),
        TensorRule(
            "decoder.{n}.attention.qkv.weight",
            tuple(f"{ATTENTION}.{name}.weight" for name in ("query", "key", "value")),
            QKV,
            when_block=lambda block: block.kinds == ("local",),
        ),
        TensorRule(
            "decoder.{n}.attention.qv.weight",
            tuple(f"{ATTENTION}.{name}.weight" for name in ("query_key", "value")),
            KV,
            when_block=lambda block: block.kinds == ("lsh",),
        ),
        TensorRule("decoder.{n}.attention.output.weight", (f"{LAYER}.attention.output.dense.weight",)),
        *weight_and_bias("decoder.{n}.ffn_norm", f"{LAYER}.feed_forward.layer_norm"),
        *weight_and_bias("decoder.{n}.ffn.up", f"{LAYER}.feed_forward.dense.dense"),
        *weight_and_bias("decoder.{n}.ffn.down", f"{LAYER}.feed_forward.output.dense"),
        *weight_and_bias("decoder.final", "reformer.encoder.layer_norm"),
        TensorRule("head.lm.table.weight", ("lm_head.decoder.weight",), VOCABULARY),
        TensorRule("head.lm.vocabulary.bias", ("lm_head.bias",), VOCABULARY),
    ),
    warning=lambda spec: "transformers 5 loads lm_head.bias but does not add it to the logits: add it yourself.",
    tied={"lm_head.decoder.bias": "lm_head.bias"},
    prefix="reformer.",
    special_ids={"pad_token_id": 0, "eos_token_id": 2},
)

COUNTERPARTS = (REFORMER,)
