"""The Transformer (Vaswani et al., 2017)."""

from megaptm.spec import (
    AttentionSpec,
    Block,
    EmbeddingSpec,
    Family,
    FFNSpec,
    InitSpec,
    LossSpec,
    NormSpec,
    Size,
    TokenizerSpec,
    change,
)

# Section 5.4: dropout applies only to the outputs of sub-layers and to the sums of embeddings. The released code has no
# bias in attention.
LAYER = Block(
    attention=AttentionSpec(bias=False, dropout=False),
    position="sinusoid",
    norm=NormSpec(position="post"),
    ffn=FFNSpec(activation="relu"),
)

TRANSFORMER = Family(
    name="transformer",
    paper="arXiv:1706.03762",
    tokenizer=TokenizerSpec(kind="bpe", vocabulary=37000, specials="marian"),
    context=512,
    embedding=EmbeddingSpec(scale="sqrt-width"),
    stacks={
        "encoder": LAYER,
        "decoder": change(LAYER, visibility="causal", cross="encoder"),
    },
    heads=("lm",),
    loss=LossSpec(label_smoothing=0.1),
    init=InitSpec(rule="glorot"),
    objectives=("translation",),
    # Table 3.
    sizes={
        "base": Size(layers=6, width=512, heads=8, ffn=2048),
        "big": Size(layers=6, width=1024, heads=16, ffn=4096),
    },
)

FAMILIES = (TRANSFORMER,)
