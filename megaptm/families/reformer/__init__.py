"""Reformer (Kitaev et al., 2020): a decoder for long texts, with attention among positions with equal hashes (LSH), and
reversible layers that store no activations for the backward pass."""

from megaptm.families.reformer.spec import AxialInput, LocalSpec, LSHSpec, ReversibleResidual
from megaptm.spec import Block, Family, FFNSpec, NormSpec, OutputSpec, Size, TokenInput, TokenizerSpec, change

LOCAL = LocalSpec(bias=False, chunk_length=128)

# Sections 2 and 3, on bytes of enwik8 in sequences of 64K; sizes of the released model. The released model has
# attention without biases, and local attention in three of four layers.
REFORMER = Family(
    name="reformer",
    paper="arXiv:2001.04451",
    tokenizer=TokenizerSpec(kind="byte-bpe", vocabulary=258),
    context=65_536,
    inputs=(TokenInput(), AxialInput()),
    stacks={
        "decoder": Block(
            visibility="causal",
            attention=(LOCAL, LOCAL, LSHSpec(bias=False, chunk_length=256, num_hashes=4, num_buckets=512), LOCAL),
            residual=ReversibleResidual(),
            norm=NormSpec(eps=1e-12),
            ffn=FFNSpec(activation="relu", dropout=True),
            final_dropout=True,
        )
    },
    heads=("lm",),
    output=OutputSpec(tied=False, bias=True),
    dropout=0.2,
    objectives=("causal-lm",),
    sizes={"enwik8": Size(layers=12, width=1024, heads=8, ffn=4096, head_width=128, inputs={"axial": (128, 512)})},
)

# The released model of a novel, `google/reformer-crime-and-punishment`: one sequence is half a million subword tokens.
REFORMER_NOVEL = change(
    REFORMER,
    name="reformer-novel",
    tokenizer={"kind": "bpe", "vocabulary": 320},
    context=524_288,
    stacks={
        "decoder": change(
            REFORMER.last_block,
            attention=(
                LocalSpec(bias=False, chunk_length=64),
                LSHSpec(bias=False, chunk_length=64, num_buckets=(64, 128)),
            ),
        ),
    },
    dropout=0.05,
    sizes={
        "crime-and-punishment": Size(
            layers=6, width=256, heads=2, ffn=512, head_width=64, inputs={"axial": (512, 1024)}
        )
    },
)

FAMILIES = (REFORMER, REFORMER_NOVEL)
