"""XLNet (Yang et al., 2019): an encoder that predicts words in a random order, by a query stream."""

from dataclasses import replace

from megaptm.families.albert import ALBERT
from megaptm.families.transformer_xl import LAYER
from megaptm.families.xlnet.spec import QueryInput, TwoStreamSpec
from megaptm.spec import Family, Size, TokenInput, change

XLNET = Family(
    name="xlnet",
    paper="arXiv:1906.08237",
    tokenizer=replace(ALBERT.tokenizer, vocabulary=32_000),
    context=512,
    stacks={
        "encoder": change(
            LAYER,
            visibility="ordered",
            attention=TwoStreamSpec(bias=False, biases="layer"),
            norm={"eps": 1e-12},
            ffn={"activation": "gelu"},
        )
    },
    inputs=(TokenInput(), QueryInput()),
    heads=("permutation-lm",),
    objectives=("permutation-lm",),
    # Appendix A.4: a recurrence cache of 384 positions.
    sizes={
        "base": Size(layers=12, width=768, heads=12, ffn=3072, memory=384),
        "large": Size(layers=24, width=1024, heads=16, ffn=4096, memory=384),
    },
)

FAMILIES = (XLNET,)
