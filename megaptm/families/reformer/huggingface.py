"""Counterpart of Reformer: `ReformerModelWithLMHead`. It samples its own rotations in each forward pass, so outputs of
the same weights differ for sequences longer than a chunk. transformers 5 has `lm_head.bias` but does not add it to
logits, unlike version 4."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from megaptm.hub.counterpart import Counterpart
from megaptm.hub.tensor_rules import KV, QKV, VOCABULARY, Form, TensorRule, pair

LAYER = "reformer.encoder.layers.{n}"
ATTENTION = f"{LAYER}.attention.self_attention"
POSITIONS = "reformer.embeddings.position_embeddings.weights"


def _contradictions(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a reason if the number of layers differs from the length of the attention list."""
    num_layers, kinds = config.get("num_hidden_layers"), config["attn_layers"]
    if num_layers != len(kinds):
        yield f"num_hidden_layers is {num_layers!r}, but attn_layers has {len(kinds)} entries (reformer: one per layer)"


REFORMER = Counterpart(
    family="reformer",
    model="ReformerModelWithLMHead",
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
            "embed.axial.row.weight", (f"{POSITIONS}.0",), Form(lambda w, _: [w[:, None]], lambda ws, _: ws[0][:, 0])
        ),
        TensorRule(
            "embed.axial.column.weight", (f"{POSITIONS}.1",), Form(lambda w, _: [w[None]], lambda ws, _: ws[0][0])
        ),
        *pair("decoder.{n}.attention_norm", f"{LAYER}.attention.layer_norm"),
        TensorRule(
            "decoder.{n}.attention.qkv.weight",
            tuple(f"{ATTENTION}.{name}.weight" for name in ("query", "key", "value")),
            QKV,
            attention_kind="local",
        ),
        TensorRule(
            "decoder.{n}.attention.qv.weight",
            tuple(f"{ATTENTION}.{name}.weight" for name in ("query_key", "value")),
            KV,
            attention_kind="lsh",
        ),
        TensorRule("decoder.{n}.attention.output.weight", (f"{LAYER}.attention.output.dense.weight",)),
        *pair("decoder.{n}.ffn_norm", f"{LAYER}.feed_forward.layer_norm"),
        *pair("decoder.{n}.ffn.up", f"{LAYER}.feed_forward.dense.dense"),
        *pair("decoder.{n}.ffn.down", f"{LAYER}.feed_forward.output.dense"),
        *pair("decoder.final", "reformer.encoder.layer_norm"),
        TensorRule("head.lm.table.weight", ("lm_head.decoder.weight",), VOCABULARY),
        TensorRule("head.lm.vocabulary.bias", ("lm_head.bias",), VOCABULARY),
    ),
    warning=lambda spec: "transformers 5 loads lm_head.bias but does not add it to the logits: add it yourself.",
    tied={"lm_head.decoder.bias": "lm_head.bias"},
    prefix="reformer.",
    special_ids={"pad_token_id": 0, "eos_token_id": 2},
)

COUNTERPARTS = (REFORMER,)
