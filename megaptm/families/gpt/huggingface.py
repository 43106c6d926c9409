"""Hugging Face's GPT-2, and GPT-3 without banded attention: `GPT2LMHeadModel`."""

from megaptm.hub.counterpart import MAX_VALUE, Counterpart, is_count
from megaptm.hub.tensor_rules import CONV_QKV, JOINED_QKV, TRANSPOSED, VOCABULARY, TensorRule, weight_and_bias

LAYER = (
    *weight_and_bias("decoder.{n}.attention_norm", "transformer.h.{n}.ln_1"),
    *weight_and_bias("decoder.{n}.attention.qkv", "transformer.h.{n}.attn.c_attn", weight=CONV_QKV, bias=JOINED_QKV),
    *weight_and_bias("decoder.{n}.attention.output", "transformer.h.{n}.attn.c_proj", weight=TRANSPOSED),
    *weight_and_bias("decoder.{n}.ffn_norm", "transformer.h.{n}.ln_2"),
    *weight_and_bias("decoder.{n}.ffn.up", "transformer.h.{n}.mlp.c_fc", weight=TRANSPOSED),
    *weight_and_bias("decoder.{n}.ffn.down", "transformer.h.{n}.mlp.c_proj", weight=TRANSPOSED),
)
TENSOR_RULES = (
    TensorRule("embed.token.weight", ("transformer.wte.weight",), VOCABULARY),
    TensorRule("embed.position.weight", ("transformer.wpe.weight",)),
    *LAYER,
    *weight_and_bias("decoder.final", "transformer.ln_f"),
)


GPT2 = Counterpart(
    family="gpt2",
    model="GPT2LMHeadModel",
    fields={
        "n_layer": "layers",
        "n_embd": "width",
        "n_head": "heads",
        "n_inner": "ffn",
        "vocab_size": "vocabulary",
        "n_positions": "context",
        "layer_norm_epsilon": "norm_eps",
        "resid_pdrop": "dropout",
        "embd_pdrop": "dropout",
        "attn_pdrop": "attention_dropout",
    },
    # No value stands for four times the width.
    checks={"ffn": (f"an integer from 1 to {MAX_VALUE:,}", lambda value: value is None or is_count(value))},
    fixed={
        "activation_function": "gelu_new",
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    rules=TENSOR_RULES,
    tied={"lm_head.weight": "transformer.wte.weight"},
    prefix="transformer.",
    special_ids={"bos_token_id": 50256, "eos_token_id": 50256},
)

GPT1 = Counterpart(
    family="gpt1",
    model="OpenAIGPTLMHeadModel",
    model_type="openai-gpt",
    fields={
        "n_layer": "layers",
        "n_embd": "width",
        "n_head": "heads",
        "vocab_size": "vocabulary",
        "n_positions": "context",
        "layer_norm_epsilon": "norm_eps",
        "resid_pdrop": "dropout",
        "embd_pdrop": "dropout",
        "attn_pdrop": "attention_dropout",
    },
    fixed={"afn": "gelu", "tie_word_embeddings": True},
    rules=(
        TensorRule("embed.token.weight", ("transformer.tokens_embed.weight",), VOCABULARY),
        TensorRule("embed.position.weight", ("transformer.positions_embed.weight",)),
        *LAYER,
    ),
    tied={"lm_head.weight": "transformer.tokens_embed.weight"},
    prefix="transformer.",
)

COUNTERPARTS = (GPT1, GPT2)
