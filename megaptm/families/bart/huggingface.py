"""Hugging Face's BART: `BartForConditionalGeneration`."""

from megaptm.hub.counterpart import Counterpart
from megaptm.hub.tensor_rules import KV, QKV, VOCABULARY, TensorRule, weight_and_bias


def _stack_rules(stack: str, prefix: str) -> tuple[TensorRule, ...]:
    """Return the tensor rules of one stack of BART; `prefix`: prefix of megaptm's names at its input."""
    hf_stack = f"model.{stack}"
    layer = f"{hf_stack}.layers.{{n}}"
    attention = tuple(f"{layer}.self_attn.{name}_proj" for name in "qkv")
    return (
        TensorRule(f"embed.{prefix}position.weight", (f"{hf_stack}.embed_positions.weight",)),
        *weight_and_bias(f"embed.{prefix}norm", f"{hf_stack}.layernorm_embedding"),
        *weight_and_bias(f"{stack}.{{n}}.attention.qkv", *attention, weight=QKV, bias=QKV),
        *weight_and_bias(f"{stack}.{{n}}.attention.output", f"{layer}.self_attn.out_proj"),
        *weight_and_bias(f"{stack}.{{n}}.attention_norm", f"{layer}.self_attn_layer_norm"),
        *weight_and_bias(f"{stack}.{{n}}.ffn.up", f"{layer}.fc1"),
        *weight_and_bias(f"{stack}.{{n}}.ffn.down", f"{layer}.fc2"),
        *weight_and_bias(f"{stack}.{{n}}.ffn_norm", f"{layer}.final_layer_norm"),
    )


CROSS = "model.decoder.layers.{n}.encoder_attn"


BART = Counterpart(
    family="bart",
    model="BartForConditionalGeneration",
    fields={
        "encoder_layers": "encoder.layers",
        "decoder_layers": "decoder.layers",
        "d_model": "width",
        "encoder_attention_heads": "encoder.heads",
        "decoder_attention_heads": "decoder.heads",
        "encoder_ffn_dim": "encoder.ffn",
        "decoder_ffn_dim": "decoder.ffn",
        "vocab_size": "vocabulary",
        "max_position_embeddings": "context",
        "dropout": "dropout",
    },
    # One rate here, as in the released models; models fine-tuned for summarization have two of them at 0.
    dropout_fields={"attention_dropout": "dropout", "activation_dropout": "dropout"},
    fixed={
        "activation_function": "gelu",
        "scale_embedding": False,
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
        "tie_word_embeddings": True,
    },
    rules=(
        TensorRule("embed.token.weight", ("model.shared.weight",), VOCABULARY),
        *_stack_rules("encoder", ""),
        *_stack_rules("decoder", "decoder_"),
        *weight_and_bias("decoder.{n}.cross.query", f"{CROSS}.q_proj"),
        *weight_and_bias("decoder.{n}.cross.kv", f"{CROSS}.k_proj", f"{CROSS}.v_proj", weight=KV, bias=KV),
        *weight_and_bias("decoder.{n}.cross.output", f"{CROSS}.out_proj"),
        *weight_and_bias("decoder.{n}.cross_norm", f"{CROSS}_layer_norm"),
    ),
    tied=dict.fromkeys(
        ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"),
        "model.shared.weight",
    ),
    prefix="model.",
    special_ids={
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
        "forced_bos_token_id": 0,
        "forced_eos_token_id": 2,
    },
    zero_parameters=lambda spec: {"final_logits_bias": (1, spec.vocabulary)},
)

COUNTERPARTS = (BART,)
