"""Hugging Face's XLNet: `XLNetLMHeadModel`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from megaptm.hub.counterpart import Counterpart
from megaptm.hub.tensor_rules import QKV, VOCABULARY, Conversion, TensorRule, weight_and_bias
from megaptm.spec import ModelSpec

if TYPE_CHECKING:
    from torch import Tensor


def _split_qkv(fused: Tensor, spec: ModelSpec) -> list[Tensor]:
    """Split the projection `qkv` into XLNet's three: rows (head, [q, k, v], K) into [D, H, K] each."""
    return [_split_heads(matrix, spec) for matrix in QKV.to_hf(fused, spec)]


def _split_heads(matrix: Tensor, spec: ModelSpec) -> Tensor:
    """Reshape a projection [H*K, D] to XLNet's form [D, H, K]."""
    return matrix.t().unflatten(1, (spec.size.heads, -1)).contiguous()


def _join_heads(weight: Tensor) -> Tensor:
    return weight.flatten(1).t()


PROJECTIONS = Conversion(_split_qkv, lambda ws, spec: QKV.from_hf([_join_heads(weight) for weight in ws], spec))
PROJECTION = Conversion(lambda w, spec: [_split_heads(w, spec)], lambda ws, spec: _join_heads(ws[0]))
OUTPUT = Conversion(
    lambda w, spec: [w.unflatten(1, (spec.size.heads, -1)).contiguous()], lambda ws, spec: ws[0].flatten(1)
)
BIAS = Conversion(lambda w, spec: [w.t().contiguous()], lambda ws, spec: ws[0].t())
# megaptm's is [2 * K, H].
SEGMENTS = Conversion(
    lambda w, spec: [w.unflatten(0, (2, -1)).transpose(1, 2).contiguous()],
    lambda ws, spec: ws[0].transpose(1, 2).flatten(0, 1),
)
QUERY = Conversion(lambda w, spec: [w[None]], lambda ws, spec: ws[0][0])
LAYER = "transformer.layer.{n}"
ATTENTION = f"{LAYER}.rel_attn"

XLNET = Counterpart(
    family="xlnet",
    model="XLNetLMHeadModel",
    fields={
        "n_layer": "layers",
        "d_model": "width",
        "n_head": "heads",
        "d_inner": "ffn",
        "vocab_size": "vocabulary",
        "layer_norm_eps": "norm_eps",
        "dropout": "dropout",
    },
    fixed={
        "ff_activation": "gelu",
        "attn_type": "bi",
        "bi_data": False,
        "clamp_len": -1,
        "same_length": False,
        "tie_word_embeddings": True,
    },
    rules=(
        TensorRule("embed.token.weight", ("transformer.word_embedding.weight",), VOCABULARY),
        TensorRule("embed.query.weight", ("transformer.mask_emb",), QUERY),
        TensorRule(
            "encoder.{n}.attention.qkv.weight", tuple(f"{ATTENTION}.{name}" for name in ("q", "k", "v")), PROJECTIONS
        ),
        TensorRule("encoder.{n}.attention.place.weight", (f"{ATTENTION}.r",), PROJECTION),
        TensorRule("encoder.{n}.attention.output.weight", (f"{ATTENTION}.o",), OUTPUT),
        TensorRule("encoder.{n}.attention.content_bias.weight", (f"{ATTENTION}.r_w_bias",), BIAS),
        TensorRule("encoder.{n}.attention.place_bias.weight", (f"{ATTENTION}.r_r_bias",), BIAS),
        TensorRule("encoder.{n}.attention.segment_bias.weight", (f"{ATTENTION}.r_s_bias",), BIAS),
        TensorRule("encoder.{n}.attention.segment_table.weight", (f"{ATTENTION}.seg_embed",), SEGMENTS),
        *weight_and_bias("encoder.{n}.attention_norm", f"{ATTENTION}.layer_norm"),
        *weight_and_bias("encoder.{n}.ffn.up", f"{LAYER}.ff.layer_1"),
        *weight_and_bias("encoder.{n}.ffn.down", f"{LAYER}.ff.layer_2"),
        *weight_and_bias("encoder.{n}.ffn_norm", f"{LAYER}.ff.layer_norm"),
        TensorRule("head.permutation-lm.vocabulary.bias", ("lm_loss.bias",), VOCABULARY),
    ),
    tied={"lm_loss.weight": "transformer.word_embedding.weight"},
    prefix="transformer",
    special_ids={"pad": 5, "begin": 1, "end": 2},
)

COUNTERPARTS = (XLNET,)
