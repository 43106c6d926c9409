"""Gemma 2 (Gemma Team, 2024), and Gemma 3 (Gemma Team, 2025) as a difference from it."""

from megaptm.spec import (
    AttentionSpec,
    Block,
    EmbeddingSpec,
    Family,
    FFNSpec,
    NormSpec,
    OutputSpec,
    Size,
    SlidingWindowSpec,
    TokenizerSpec,
    change,
)

GEMMA2 = Family(
    name="gemma2",
    paper="arXiv:2408.00118",
    tokenizer=TokenizerSpec(kind="bpe", vocabulary=256_000),
    context=8192,
    embedding=EmbeddingSpec(scale="sqrt-width"),
    stacks={
        "decoder": Block(
            visibility="causal",
            position="rope",
            norm=NormSpec(kind="rms-unit-offset", position="sandwich", eps=1e-6),
            ffn=FFNSpec(activation="geglu", bias=False),
            # Local and global layers in turn.
            attention=(
                SlidingWindowSpec(bias=False, window=4096, score_cap=50.0, scale_width=256),
                AttentionSpec(bias=False, score_cap=50.0, scale_width=256),
            ),
        )
    },
    output=OutputSpec(cap=30.0),
    dropout=0.0,
    objectives=("causal-lm",),
    # Table 1. The config of 27b sets `model.attention.scale_width`.
    sizes={
        "2b": Size(layers=26, width=2304, heads=8, ffn=9216, head_width=256, kv_heads=4),
        "9b": Size(layers=42, width=3584, heads=16, ffn=14_336, head_width=256, kv_heads=8),
        "27b": Size(layers=46, width=4608, heads=32, ffn=36_864, head_width=128, kv_heads=16),
    },
)

LOCAL = SlidingWindowSpec(bias=False, window=1024, qk_norm="head", scale_width=256)
# Section 2: five local layers for each global one, and norms of queries and keys instead of soft caps.
GEMMA3 = change(
    GEMMA2,
    name="gemma3",
    paper="arXiv:2503.19786",
    tokenizer={"vocabulary": 262_144},
    context=131_072,
    stacks={
        "decoder": change(
            GEMMA2.last_block,
            attention=(
                *[LOCAL] * 5,
                AttentionSpec(bias=False, qk_norm="head", scale_width=256, rope_base=1_000_000.0, rope_factor=8.0),
            ),
        )
    },
    output={"cap": None},
    # Table 1, and the released configs. Those of 270m, 1b and 27b set `model.attention`.
    sizes={
        "270m": Size(layers=18, width=640, heads=4, ffn=2048, head_width=256, kv_heads=1),
        "1b": Size(layers=26, width=1152, heads=4, ffn=6912, head_width=256, kv_heads=1),
        "4b": Size(layers=34, width=2560, heads=8, ffn=10_240, head_width=256, kv_heads=4),
        "12b": Size(layers=48, width=3840, heads=16, ffn=15_360, head_width=256, kv_heads=8),
        "27b": Size(layers=62, width=5376, heads=32, ffn=21_504, head_width=128, kv_heads=16),
    },
)

FAMILIES = (GEMMA2, GEMMA3)
