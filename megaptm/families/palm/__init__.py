"""PaLM (Chowdhery et al., 2022)."""

from megaptm.spec import (
    AttentionSpec,
    Block,
    Family,
    FFNSpec,
    InitSpec,
    LossSpec,
    NormSpec,
    OutputSpec,
    Size,
    TokenizerSpec,
)

PALM = Family(
    name="palm",
    paper="arXiv:2204.02311",
    tokenizer=TokenizerSpec(kind="bpe", vocabulary=256_000),
    context=2048,
    stacks={
        "decoder": Block(
            visibility="causal",
            position="rope",
            norm=NormSpec(kind="layer-no-shift", position="parallel", eps=1e-6),
            ffn=FFNSpec(activation="swiglu", bias=False),
            attention=AttentionSpec(bias=False),
        )
    },
    output=OutputSpec(scale="rsqrt-width"),
    loss=LossSpec(z_loss=1e-4),
    init=InitSpec(rule="fan-in"),
    dropout=0.0,
    objectives=("causal-lm",),
    # Table 1. All query heads share one head of keys and values.
    sizes={
        "8b": Size(layers=32, width=4096, heads=16, ffn=16384, head_width=256, kv_heads=1),
        "62b": Size(layers=64, width=8192, heads=32, ffn=32768, head_width=256, kv_heads=1),
        "540b": Size(layers=118, width=18432, heads=48, ffn=73728, head_width=256, kv_heads=1),
    },
)

FAMILIES = (PALM,)
