"""Hugging Face's PaLM: `CohereForCausalLM` with one key and value head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from megaptm.hub.counterpart import Counterpart, is_number
from megaptm.hub.tensor_rules import GATE_AND_VALUE, KV, QKV, VOCABULARY, Conversion, TensorRule, has_grouped_keys
from megaptm.spec import ModelSpec

if TYPE_CHECKING:
    from torch import Tensor


def _interleave_halves(rows: Tensor, spec: ModelSpec) -> Tensor:
    """Interleave the halves of each head, so that features i and i + K/2, which `rope` rotates together, are side by
    side."""
    return rows.unflatten(0, (-1, 2, spec.size.key_width // 2)).transpose(1, 2).flatten(0, 2)


def _split_halves(rows: Tensor, spec: ModelSpec) -> Tensor:
    return rows.unflatten(0, (-1, spec.size.key_width // 2, 2)).transpose(1, 2).flatten(0, 2)


def _kv_to_hf(w: Tensor, spec: ModelSpec) -> list[Tensor]:
    keys, values = KV.to_hf(w, spec)
    return [_interleave_halves(keys, spec), values]


def _qkv_to_hf(w: Tensor, spec: ModelSpec) -> list[Tensor]:
    queries, keys, values = QKV.to_hf(w, spec)
    return [_interleave_halves(queries, spec), _interleave_halves(keys, spec), values]


def _qkv_from_hf(ws: list[Tensor], spec: ModelSpec) -> Tensor:
    return QKV.from_hf([_split_halves(ws[0], spec), _split_halves(ws[1], spec), ws[2]], spec)


def _contradictions(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a reason against importing a PaLM whose logits have another factor than width**-0.5."""
    scale = config["hidden_size"] ** -0.5
    if abs(config["logit_scale"] / scale - 1) > 1e-6:
        yield f"logit_scale is {config['logit_scale']} (palm has {scale:.6g} for hidden_size {config['hidden_size']})"


ROTARY_QUERY = Conversion(lambda w, spec: [_interleave_halves(w, spec)], lambda ws, spec: _split_halves(ws[0], spec))
ROTARY_KV = Conversion(_kv_to_hf, lambda ws, spec: KV.from_hf([_split_halves(ws[0], spec), ws[1]], spec))

LAYER = "model.layers.{n}"
TENSOR_RULES = (
    TensorRule("embed.token.weight", ("model.embed_tokens.weight",), VOCABULARY),
    TensorRule("decoder.{n}.attention_norm.weight", (f"{LAYER}.input_layernorm.weight",)),
    TensorRule(
        "decoder.{n}.attention.qkv.weight",
        tuple(f"{LAYER}.self_attn.{name}_proj.weight" for name in "qkv"),
        Conversion(_qkv_to_hf, _qkv_from_hf),
        when=lambda spec: not has_grouped_keys(spec),
    ),
    TensorRule(
        "decoder.{n}.attention.query.weight", (f"{LAYER}.self_attn.q_proj.weight",), ROTARY_QUERY, when=has_grouped_keys
    ),
    TensorRule(
        "decoder.{n}.attention.kv.weight",
        (f"{LAYER}.self_attn.k_proj.weight", f"{LAYER}.self_attn.v_proj.weight"),
        ROTARY_KV,
        when=has_grouped_keys,
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
    checks={"logit_scale": ("a positive number", lambda value: is_number(value) and value > 0)},
    further_values=lambda spec: {"logit_scale": spec.size.width**-0.5},
    contradictions=_contradictions,
    # The only one that it has.
    dropout_fields={"attention_dropout": "dropout"},
    fixed={
        "hidden_act": "silu",
        "attention_bias": False,
        "use_qk_norm": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        "tie_word_embeddings": True,
    },
    rules=TENSOR_RULES,
    tied={"lm_head.weight": "model.embed_tokens.weight"},
    prefix="model.",
)

COUNTERPARTS = (PALM,)
