"""T5 v1.0 (Raffel et al., 2019), v1.1, which was released later, and mT5 (Xue et al., 2020), which equals v1.1."""

from megaptm.spec import (
    AttentionSpec,
    Block,
    Family,
    FFNSpec,
    InitSpec,
    NormSpec,
    OutputSpec,
    Size,
    TokenizerSpec,
    change,
)

LAYER = Block(
    attention=AttentionSpec(bias=False, scale="none"),
    norm=NormSpec(kind="rms", eps=1e-6),
    ffn=FFNSpec(activation="relu", bias=False, dropout=True),
    final_dropout=True,
)

T5 = Family(
    name="t5",
    paper="arXiv:1910.10683",
    tokenizer=TokenizerSpec(kind="unigram", vocabulary=32128),
    context=512,
    stacks={
        "encoder": change(LAYER, position="t5-bias"),
        "decoder": change(LAYER, visibility="causal", position="t5-bias-causal", cross="encoder"),
    },
    heads=("lm",),
    output=OutputSpec(scale="rsqrt-width"),
    init=InitSpec(rule="t5"),
    # Section 3.3; the first is the paper's final choice.
    objectives=(
        "span-corruption",
        "token-corruption",
        "dropped-tokens",
        "bert-style",
        "mass-style",
        "mass",
        "seq2seq-masked-lm",
        "deshuffling",
        "prefix-lm",
        "ul2",
        "text-to-text",
        "translation",
    ),
    sizes={
        "small": Size(layers=6, width=512, heads=8, ffn=2048),
        "base": Size(layers=12, width=768, heads=12, ffn=3072),
        "large": Size(layers=24, width=1024, heads=16, ffn=4096),
        "3b": Size(layers=24, width=1024, heads=32, ffn=16384, head_width=128),
        "11b": Size(layers=24, width=1024, heads=128, ffn=65536, head_width=128),
    },
)

# github.com/google-research/text-to-text-transfer-transformer, released_checkpoints.md: gated FFN, untied head, no
# dropout in pre-training, and other sizes, with heads of width 64 in all of them.
T5_V1_1: Family = change(
    T5,
    name="t5-v1.1",
    stacks={name: change(block, ffn={"activation": "geglu"}) for name, block in T5.stacks.items()},
    output=OutputSpec(tied=False),
    dropout=0.0,
    sizes={
        "small": Size(layers=8, width=512, heads=6, ffn=1024, head_width=64),
        "base": Size(layers=12, width=768, heads=12, ffn=2048),
        "large": Size(layers=24, width=1024, heads=16, ffn=2816),
        "xl": Size(layers=24, width=2048, heads=32, ffn=5120),
        "xxl": Size(layers=24, width=4096, heads=64, ffn=10240),
    },
)

MT5 = change(T5_V1_1, name="mt5", paper="arXiv:2010.11934", tokenizer={"vocabulary": 250_112}, context=1024)

FAMILIES = (T5, T5_V1_1, MT5)
