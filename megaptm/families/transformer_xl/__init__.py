"""Transformer-XL (Dai et al., 2019): a decoder that attends to the hidden states of earlier steps."""

from megaptm.families.transformer_xl.spec import AdaptiveInput, RelativeSpec
from megaptm.spec import Block, EmbeddingSpec, Family, FFNSpec, NormSpec, OutputSpec, Size, TokenizerSpec, change

ONE_TABLE = {"cutoffs": (), "division": 1}
CUTOFFS = (20_000, 40_000, 200_000)

LAYER = Block(
    visibility="causal",
    attention=RelativeSpec(bias=False, dropout=False),
    norm=NormSpec(position="post"),
    ffn=FFNSpec(activation="relu", dropout=True),
    final_dropout=True,
)

# Table 2 of the paper and the released run scripts, for enwik8, which has 204 different bytes. The context is that of
# the smaller model; the larger has sequences and a recurrence cache of 768 positions.
TRANSFORMER_XL_BYTES = Family(
    name="transformer-xl-bytes",
    paper="arXiv:1901.02860",
    tokenizer=TokenizerSpec(kind="byte-bpe", vocabulary=204),
    context=512,
    inputs=(AdaptiveInput(),),
    embedding=EmbeddingSpec(scale="sqrt-width"),
    stacks={"decoder": LAYER},
    heads=("lm",),
    output=OutputSpec(bias=True),
    objectives=("continued-causal-lm",),
    sizes={
        "base": Size(layers=12, width=512, heads=8, ffn=2048, memory=512, inputs=ONE_TABLE),
        "large": Size(layers=24, width=1024, heads=8, ffn=3072, memory=768, inputs=ONE_TABLE),
    },
)

# For WikiText-103, with a vocabulary of words by frequency. The larger has sequences and a recurrence cache of 384
# positions.
TRANSFORMER_XL = change(
    TRANSFORMER_XL_BYTES,
    name="transformer-xl",
    tokenizer={"kind": "words", "vocabulary": 267_735},
    context=150,
    sizes={
        "base": Size(
            layers=16,
            width=410,
            heads=10,
            ffn=2100,
            head_width=41,
            memory=150,
            inputs={"cutoffs": CUTOFFS, "division": 1},
        ),
        "large": Size(
            layers=18, width=1024, heads=16, ffn=4096, memory=384, inputs={"cutoffs": CUTOFFS, "division": 4}
        ),
    },
)

FAMILIES = (TRANSFORMER_XL, TRANSFORMER_XL_BYTES)
