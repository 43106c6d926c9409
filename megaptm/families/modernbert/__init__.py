"""ModernBERT (Warner et al., 2024), and models of its block: Ettin (Weller et al., 2025), encoders and decoders; mmBERT
(Marone et al., 2025)."""

from dataclasses import replace

from megaptm.spec import (
    AttentionSpec,
    Block,
    EmbeddingSpec,
    Family,
    FFNSpec,
    InitSpec,
    NormSpec,
    OutputSpec,
    Size,
    SlidingWindowSpec,
    TokenizerSpec,
    TransformSpec,
    change,
)

# Every third layer attends to the whole document, with its own base of rotary positions; the others to a window.
LOCAL = SlidingWindowSpec(bias=False, window=128)
GLOBAL = AttentionSpec(bias=False, rope_base=160_000.0)

MODERNBERT = Family(
    name="modernbert",
    paper="arXiv:2412.13663",
    tokenizer=TokenizerSpec(kind="byte-bpe", vocabulary=50368, specials="modernbert"),
    context=8192,
    embedding=EmbeddingSpec(norm=True),
    stacks={
        "encoder": Block(
            position="rope",
            # The first layer reads the normalized embeddings as they are.
            norm=NormSpec(kind="layer-no-shift", first=False),
            ffn=FFNSpec(activation="geglu-exact", bias=False),
            attention=(GLOBAL, LOCAL, LOCAL),
        )
    },
    heads=("mlm",),
    output=OutputSpec(transform=TransformSpec(bias=False, activation="gelu"), bias=True),
    init=InitSpec(rule="truncated-gpt2"),
    dropout=0.0,
    objectives=("masked-lm", "masked-lm-whole-word"),
    sizes={
        "base": Size(layers=22, width=768, heads=12, ffn=1152),
        "large": Size(layers=28, width=1024, heads=16, ffn=2624),
    },
)

# arXiv:2507.11412, table 1. After the extension to 8,192 tokens all layers have the base of global ones.
ETTIN = change(
    MODERNBERT,
    name="ettin",
    paper="arXiv:2507.11412",
    stacks={"encoder": change(MODERNBERT.last_block, attention={"rope_base": 160_000.0})},
    sizes={
        "17m": Size(layers=7, width=256, heads=4, ffn=384),
        "32m": Size(layers=10, width=384, heads=6, ffn=576),
        "68m": Size(layers=19, width=512, heads=8, ffn=768),
        "150m": Size(layers=22, width=768, heads=12, ffn=1152),
        "400m": Size(layers=28, width=1024, heads=16, ffn=2624),
        "1b": Size(layers=28, width=1792, heads=28, ffn=3840),
    },
)

# A position attends to 64 before it, its own included: half of the encoder's window.
ETTIN_DECODER = change(
    ETTIN,
    name="ettin-decoder",
    stacks={
        "decoder": change(
            ETTIN.last_block,
            visibility="causal",
            attention=tuple(
                replace(record, window=64) if isinstance(record, SlidingWindowSpec) else record
                for record in ETTIN.last_block.attentions
            ),
        )
    },
    heads=("lm",),
    objectives=("causal-lm",),
)

# arXiv:2509.06888: the block of Ettin, with the tokenizer of Gemma 2.
MMBERT = change(
    ETTIN,
    name="mmbert",
    paper="arXiv:2509.06888",
    tokenizer={"kind": "bpe", "vocabulary": 256_000},
    sizes={
        "small": Size(layers=22, width=384, heads=6, ffn=1152),
        "base": Size(layers=22, width=768, heads=12, ffn=1152),
    },
)

FAMILIES = (MODERNBERT, ETTIN, ETTIN_DECODER, MMBERT)
