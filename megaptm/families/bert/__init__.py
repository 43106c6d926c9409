"""BERT (Devlin et al., 2018)."""

from megaptm.spec import (
    Block,
    EmbeddingSpec,
    Family,
    InitSpec,
    NormSpec,
    OutputSpec,
    SegmentInput,
    Size,
    TokenInput,
    TokenizerSpec,
    TransformSpec,
)

BERT = Family(
    name="bert",
    paper="arXiv:1810.04805",
    tokenizer=TokenizerSpec(kind="wordpiece", vocabulary=30522),
    context=512,
    inputs=(TokenInput(), SegmentInput(rows=2)),
    init=InitSpec(rule="truncated-normal"),
    embedding=EmbeddingSpec(norm=True),
    stacks={"encoder": Block(position="learned", norm=NormSpec(position="post", eps=1e-12))},
    heads=("mlm", "next-sentence"),
    output=OutputSpec(transform=TransformSpec(), bias=True),
    objectives=(
        "masked-lm-next-sentence",
        "masked-lm",
        "masked-lm-whole-word",
        "masked-lm-whole-word-next-sentence",
    ),
    sizes={
        "base": Size(layers=12, width=768, heads=12, ffn=3072),
        "large": Size(layers=24, width=1024, heads=16, ffn=4096),
    },
)

FAMILIES = (BERT,)
