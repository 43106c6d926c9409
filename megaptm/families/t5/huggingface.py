"""Hugging Face's T5: `T5ForConditionalGeneration`, versions 1.0 and 1.1, and `MT5ForConditionalGeneration`."""

from dataclasses import replace

from megaptm.hub.counterpart import Counterpart
from megaptm.hub.tensor_rules import GATE_AND_VALUE, KV, QKV, VOCABULARY, TensorRule
from megaptm.spec import BIAS_BUCKETS, BIAS_FARTHEST


def _stack_rules(stack: str, ffn: int, *, gated: bool) -> tuple[TensorRule, ...]:
    """Return the tensor rules of one stack of T5; the feed-forward is the last sub-layer of a block, with index
    `ffn`."""
    block = f"{stack}.block.{{n}}.layer"
    attention, dense = f"{block}.0.SelfAttention", f"{block}.{ffn}.DenseReluDense"
    plain, gate_and_value = (f"{dense}.wi.weight",), (f"{dense}.wi_0.weight", f"{dense}.wi_1.weight")
    return (
        TensorRule(
            f"{stack}.bias_table.weight", (f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",)
        ),
        TensorRule(f"{stack}.{{n}}.attention_norm.weight", (f"{block}.0.layer_norm.weight",)),
        TensorRule(f"{stack}.{{n}}.attention.qkv.weight", tuple(f"{attention}.{name}.weight" for name in "qkv"), QKV),
        TensorRule(f"{stack}.{{n}}.attention.output.weight", (f"{attention}.o.weight",)),
        TensorRule(f"{stack}.{{n}}.ffn_norm.weight", (f"{block}.{ffn}.layer_norm.weight",)),
        TensorRule(f"{stack}.{{n}}.ffn.up.weight", gate_and_value, GATE_AND_VALUE)
        if gated
        else TensorRule(f"{stack}.{{n}}.ffn.up.weight", plain),
        TensorRule(f"{stack}.{{n}}.ffn.down.weight", (f"{dense}.wo.weight",)),
        TensorRule(f"{stack}.final.weight", (f"{stack}.final_layer_norm.weight",)),
    )


CROSS = "decoder.block.{n}.layer.1.EncDecAttention"


def _all_rules(*, gated: bool) -> tuple[TensorRule, ...]:
    return (
        TensorRule("embed.token.weight", ("shared.weight",), VOCABULARY),
        *_stack_rules("encoder", ffn=1, gated=gated),
        *_stack_rules("decoder", ffn=2, gated=gated),
        TensorRule("decoder.{n}.cross_norm.weight", ("decoder.block.{n}.layer.1.layer_norm.weight",)),
        TensorRule("decoder.{n}.cross.query.weight", (f"{CROSS}.q.weight",)),
        TensorRule("decoder.{n}.cross.kv.weight", (f"{CROSS}.k.weight", f"{CROSS}.v.weight"), KV),
        TensorRule("decoder.{n}.cross.output.weight", (f"{CROSS}.o.weight",)),
    )


INPUTS = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
BUCKETS = {"relative_attention_num_buckets": BIAS_BUCKETS, "relative_attention_max_distance": BIAS_FARTHEST}

GATED = {"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu_new", "is_gated_act": True}

T5 = Counterpart(
    family="t5",
    model="T5ForConditionalGeneration",
    fields={
        "num_layers": "encoder.layers",
        "num_decoder_layers": "decoder.layers",
        "d_model": "width",
        "num_heads": "heads",
        "d_kv": "head_width",
        "d_ff": "ffn",
        "vocab_size": "vocabulary",
        "layer_norm_epsilon": "norm_eps",
        "dropout_rate": "dropout",
    },
    fixed={
        **BUCKETS,
        "feed_forward_proj": "relu",
        "dense_act_fn": "relu",
        "is_gated_act": False,
        "is_encoder_decoder": True,
        "scale_decoder_outputs": True,
    },
    # The config class derives the first two from feed_forward_proj, unless the file sets them.
    optional_fields=frozenset(("dense_act_fn", "is_gated_act", "is_encoder_decoder")),
    determined_by={"scale_decoder_outputs": "tie_word_embeddings"},
    rules=_all_rules(gated=False),
    tied=dict.fromkeys((*INPUTS, "lm_head.weight"), "shared.weight"),
    special_ids={"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0},
)

T5_V1_1 = replace(
    T5,
    family="t5-v1.1",
    model_type="t5",
    fixed=T5.fixed | GATED | {"scale_decoder_outputs": False},
    rules=(*_all_rules(gated=True), TensorRule("head.lm.table.weight", ("lm_head.weight",), VOCABULARY)),
    tied=dict.fromkeys(INPUTS, "shared.weight"),
    tied_if_absent={"lm_head.weight": "shared.weight"},
)

MT5 = replace(
    T5_V1_1,
    family="mt5",
    model="MT5ForConditionalGeneration",
    model_type="mt5",
    fixed={name: value for name, value in T5_V1_1.fixed.items() if name != "scale_decoder_outputs"},
)

COUNTERPARTS = (T5, T5_V1_1, MT5)
