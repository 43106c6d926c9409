"""`T5ForConditionalGeneration`."""

from megaptm.hub.counterparts.counterpart import Counterpart
from megaptm.hub.tensor_rules import KV, QKV, VOCABULARY, TensorRule


def _stack(stack: str, ffn: int) -> tuple[TensorRule, ...]:
    """Rows that both stacks have; the feed-forward is the last of a block's sub-layers, number `ffn`."""
    block = f"{stack}.block.{{n}}.layer"
    attention = f"{block}.0.SelfAttention"
    return (
        TensorRule(
            f"{stack}.bias_table.weight", (f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",)
        ),
        TensorRule(f"{stack}.{{n}}.attention_norm.weight", (f"{block}.0.layer_norm.weight",)),
        TensorRule(f"{stack}.{{n}}.attention.qkv.weight", tuple(f"{attention}.{name}.weight" for name in "qkv"), QKV),
        TensorRule(f"{stack}.{{n}}.attention.output.weight", (f"{attention}.o.weight",)),
        TensorRule(f"{stack}.{{n}}.ffn_norm.weight", (f"{block}.{ffn}.layer_norm.weight",)),
        TensorRule(f"{stack}.{{n}}.ffn.up.weight", (f"{block}.{ffn}.DenseReluDense.wi.weight",)),
        TensorRule(f"{stack}.{{n}}.ffn.down.weight", (f"{block}.{ffn}.DenseReluDense.wo.weight",)),
        TensorRule(f"{stack}.final.weight", (f"{stack}.final_layer_norm.weight",)),
    )


CROSS = "decoder.block.{n}.layer.1.EncDecAttention"
ROWS = (
    TensorRule("embed.token.weight", ("shared.weight",), VOCABULARY),
    *_stack("encoder", ffn=1),
    *_stack("decoder", ffn=2),
    TensorRule("decoder.{n}.cross_norm.weight", ("decoder.block.{n}.layer.1.layer_norm.weight",)),
    TensorRule("decoder.{n}.cross.query.weight", (f"{CROSS}.q.weight",)),
    TensorRule("decoder.{n}.cross.kv.weight", (f"{CROSS}.k.weight", f"{CROSS}.v.weight"), KV),
    TensorRule("decoder.{n}.cross.output.weight", (f"{CROSS}.o.weight",)),
)


T5 = Counterpart(
    family="t5",
    model="T5ForConditionalGeneration",
    numbers={
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
        "feed_forward_proj": "relu",
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "scale_decoder_outputs": True,
    },
    rows=ROWS,
    tied=dict.fromkeys(
        ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"), "shared.weight"
    ),
    special={"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0},
)
