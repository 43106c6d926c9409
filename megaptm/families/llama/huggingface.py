"""Hugging Face's Llama 2 and 3: `LlamaForCausalLM`."""

from dataclasses import replace

from megaptm.hub.counterpart import MAX_VALUE, Counterpart, is_even
from megaptm.hub.tensor_rules import GATE_AND_VALUE, KV, QKV, VOCABULARY, TensorRule, has_grouped_keys

LAYER = "model.layers.{n}"
ATTENTION = f"{LAYER}.self_attn"
ATTENTION_RULES = (
    TensorRule(
        "decoder.{n}.attention.qkv.weight",
        tuple(f"{ATTENTION}.{name}_proj.weight" for name in "qkv"),
        QKV,
        when=lambda spec: not has_grouped_keys(spec),
    ),
    TensorRule("decoder.{n}.attention.query.weight", (f"{ATTENTION}.q_proj.weight",), when=has_grouped_keys),
    TensorRule(
        "decoder.{n}.attention.kv.weight",
        tuple(f"{ATTENTION}.{name}_proj.weight" for name in "kv"),
        KV,
        when=has_grouped_keys,
    ),
    TensorRule("decoder.{n}.attention.output.weight", (f"{ATTENTION}.o_proj.weight",)),
)
FFN_RULES = (
    TensorRule(
        "decoder.{n}.ffn.up.weight", (f"{LAYER}.mlp.gate_proj.weight", f"{LAYER}.mlp.up_proj.weight"), GATE_AND_VALUE
    ),
    TensorRule("decoder.{n}.ffn.down.weight", (f"{LAYER}.mlp.down_proj.weight",)),
)
MODEL_RULES = (
    TensorRule("embed.token.weight", ("model.embed_tokens.weight",), VOCABULARY),
    TensorRule("decoder.final.weight", ("model.norm.weight",)),
    TensorRule("head.lm.table.weight", ("lm_head.weight",), VOCABULARY, when=lambda spec: not spec.family.output.tied),
)
NORM_RULES = (
    TensorRule("decoder.{n}.attention_norm.weight", (f"{LAYER}.input_layernorm.weight",)),
    TensorRule("decoder.{n}.ffn_norm.weight", (f"{LAYER}.post_attention_layernorm.weight",)),
)

LLAMA = Counterpart(
    family="llama",
    model="LlamaForCausalLM",
    fields={
        "num_hidden_layers": "layers",
        "hidden_size": "width",
        "num_attention_heads": "heads",
        "num_key_value_heads": "kv_heads",
        "head_dim": "head_width",
        "intermediate_size": "ffn",
        "vocab_size": "vocabulary",
        "max_position_embeddings": "context",
        "rms_norm_eps": "norm_eps",
        "rope_parameters": "rope_parameters",
        "tie_word_embeddings": "tied",
        "attention_dropout": "attention_dropout",
    },
    # Rotary positions pair the features of a head.
    checks={"head_width": (f"an even number from 2 to {MAX_VALUE:,}", is_even)},
    fixed={"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
    rules=(*MODEL_RULES, *NORM_RULES, *ATTENTION_RULES, *FFN_RULES),
    tied={"lm_head.weight": "model.embed_tokens.weight"},
    prefix="model.",
    special_ids={"bos_token_id": 1, "eos_token_id": 2},
)
LLAMA3 = replace(
    LLAMA, family="llama3", model_type="llama", special_ids={"bos_token_id": 128_000, "eos_token_id": 128_001}
)

COUNTERPARTS = (LLAMA, LLAMA3)
