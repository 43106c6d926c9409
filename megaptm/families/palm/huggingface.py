"""Counterpart of PaLM: `CohereForCausalLM` with one key and value head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from megaptm.hub.counterpart import Counterpart
from megaptm.hub.tensor_rules import GATE_AND_VALUE, KV, QKV, VOCABULARY, Form, TensorRule
from megaptm.spec import ModelSpec

if TYPE_CHECKING:
    from torch import Tensor


def _neighbors(rows: Tensor, spec: ModelSpec) -> Tensor:
    """Place features i and i + K/2 of each head, which `rope` rotates together, side by side."""
    return rows.unflatten(0, (-1, 2, spec.size.key_width // 2)).transpose(1, 2).flatten(0, 2)


def _halves(rows: Tensor, spec: ModelSpec) -> Tensor:
    return rows.unflatten(0, (-1, spec.size.key_width // 2, 2)).transpose(1, 2).flatten(0, 2)


def _give_keys(w: Tensor, spec: ModelSpec) -> list[Tensor]:
    keys, values = KV.give(w, spec)
    return [_neighbors(keys, spec), values]


def _give_all(w: Tensor, spec: ModelSpec) -> list[Tensor]:
    queries, keys, values = QKV.give(w, spec)
    return [_neighbors(queries, spec), _neighbors(keys, spec), values]


def _take_all(ws: list[Tensor], spec: ModelSpec) -> Tensor:
    return QKV.take([_halves(ws[0], spec), _halves(ws[1], spec), ws[2]], spec)


def _shares_keys(spec: ModelSpec) -> bool:
    """Whether there are fewer key heads than query heads."""
    return spec.size.key_heads != spec.size.heads


QUERY = Form(lambda w, spec: [_neighbors(w, spec)], lambda ws, spec: _halves(ws[0], spec))
TURNED_KV = Form(_give_keys, lambda ws, spec: KV.take([_halves(ws[0], spec), ws[1]], spec))

LAYER = "model.layers.{n}"
ROWS = (
    TensorRule("embed.token.weight", ("model.embed_tokens.weight",), VOCABULARY),
    TensorRule("decoder.{n}.attention_norm.weight", (f"{LAYER}.input_layernorm.weight",)),
    TensorRule(
        "decoder.{n}.attention.qkv.weight",
        tuple(f"{LAYER}.self_attn.{name}_proj.weight" for name in "qkv"),
        Form(_give_all, _take_all),
        when=lambda spec: not _shares_keys(spec),
    ),
    TensorRule("decoder.{n}.attention.query.weight", (f"{LAYER}.self_attn.q_proj.weight",), QUERY, when=_shares_keys),
    TensorRule(
        "decoder.{n}.attention.kv.weight",
        (f"{LAYER}.self_attn.k_proj.weight", f"{LAYER}.self_attn.v_proj.weight"),
        TURNED_KV,
        when=_shares_keys,
    ),
    TensorRule("decoder.{n}.attention.output.weight", (f"{LAYER}.self_attn.o_proj.weight",)),
    TensorRule(
        "decoder.{n}.ffn.up.weight", (f"{LAYER}.mlp.gate_proj.weight", f"{LAYER}.mlp.up_proj.weight"), GATE_AND_VALUE
    ),
    TensorRule("decoder.{n}.ffn.down.weight", (f"{LAYER}.mlp.down_proj.weight",)),
    TensorRule("decoder.final.weight", ("model.norm.weight",)),
)

PALM = Counterpart(
    family="palm",
    model="CohereForCausalLM",
    model_type="cohere",
    fields={
        "num_hidden_layers": "layers",
        "hidden_size": "width",
        "num_attention_heads": "heads",
        "num_key_value_heads": "kv_heads",
        "head_dim": "head_width",
        "intermediate_size": "ffn",
        "vocab_size": "vocabulary",
        "max_position_embeddings": "context",
        "layer_norm_eps": "norm_eps",
        "logit_scale": "logit_scale",
    },
    # The only one that it has.
    dropout_fields={"attention_dropout": "dropout"},
    fixed={
        "hidden_act": "silu",
        "attention_bias": False,
        "use_qk_norm": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        "tie_word_embeddings": True,
    },
    rows=ROWS,
    tied={"lm_head.weight": "model.embed_tokens.weight"},
    prefix="model.",
)

COUNTERPARTS = (PALM,)
