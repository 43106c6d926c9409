"""The Transformer (Vaswani et al., 2017)."""

from megaptm.spec import AttentionSpec, Block, Family, FFNSpec, NormSpec, Size, change

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
    vocabulary=37000,
    tokenizer="bpe",
    specials="marian",
    context=512,
    embedding_scale="sqrt-width",
    stacks={
        "encoder": LAYER,
        "decoder": change(LAYER, visibility="causal", cross="encoder"),
    },
    heads=("lm",),
    label_smoothing=0.1,
    init="glorot",
    objectives=("translation",),
    # Table 3.
    sizes={
        "base": Size(layers=6, width=512, heads=8, ffn=2048),
        "big": Size(layers=6, width=1024, heads=16, ffn=4096),
    },
)

FAMILIES = (TRANSFORMER,)
