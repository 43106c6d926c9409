"""Llama 2 (Touvron et al., 2023), and Llama 3 (Grattafiori et al., 2024) as a difference from it."""

from megaptm.spec import (
    AttentionSpec,
    Block,
    Family,
    FFNSpec,
    NormSpec,
    OutputSpec,
    Size,
    TokenizerSpec,
    change,
)

LLAMA = Family(
    name="llama",
    paper="arXiv:2307.09288",
    tokenizer=TokenizerSpec(kind="bpe", vocabulary=32_000),
    context=4096,
    stacks={
        "decoder": Block(
            visibility="causal",
            position="rope",
            norm=NormSpec(kind="rms"),
            ffn=FFNSpec(activation="swiglu", bias=False),
            attention=AttentionSpec(bias=False),
        )
    },
    output=OutputSpec(tied=False),
    dropout=0.0,
    objectives=("causal-lm",),
    sizes={
        "7b": Size(layers=32, width=4096, heads=32, ffn=11_008),
        "13b": Size(layers=40, width=5120, heads=40, ffn=13_824),
        "70b": Size(layers=80, width=8192, heads=64, ffn=28_672, kv_heads=8),
    },
)

# Section 3.2 and table 3. The released 1b and 3b (2024-09), whose output projection is the token table, stretch
# wavelengths: their configs set `model.attention`.
LLAMA3 = change(
    LLAMA,
    name="llama3",
    paper="arXiv:2407.21783",
    tokenizer={"kind": "byte-bpe", "vocabulary": 128_256},
    context=8192,
    stacks={"decoder": change(LLAMA.last_block, attention={"rope_base": 500_000.0})},
    sizes={
        "1b": Size(layers=16, width=2048, heads=32, ffn=8192, kv_heads=8, tied=True),
        "3b": Size(layers=28, width=3072, heads=24, ffn=8192, kv_heads=8, tied=True),
        "8b": Size(layers=32, width=4096, heads=32, ffn=14_336, kv_heads=8),
        "70b": Size(layers=80, width=8192, heads=64, ffn=28_672, kv_heads=8),
        "405b": Size(layers=126, width=16_384, heads=128, ffn=53_248, kv_heads=8),
    },
)

FAMILIES = (LLAMA, LLAMA3)
