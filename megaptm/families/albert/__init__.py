"""ALBERT (Lan et al., 2019), version 1: BERT with shared layers, narrow embedding tables, and sentence-order
prediction."""

from megaptm.families.bert import BERT
from megaptm.spec import SharingSpec, Size, change

ALBERT = change(
    BERT,
    name="albert",
    paper="arXiv:1909.11942",
    tokenizer={"kind": "unigram", "vocabulary": 30000, "specials": "albert"},
    stacks={
        "encoder": change(
            BERT.last_block, ffn={"activation": "gelu-tanh"}, sharing=SharingSpec(sublayers=("attention", "ffn"))
        )
    },
    heads=("mlm", "sentence-order"),
    objectives=("masked-lm-ngrams-sentence-order", "masked-lm-sentence-order", "masked-lm"),
    # Table 1. The paper trains the largest without dropout (section 4.8): set in its config.
    sizes={
        "base": Size(layers=12, width=768, heads=12, ffn=3072, embedding=128),
        "large": Size(layers=24, width=1024, heads=16, ffn=4096, embedding=128),
        "xlarge": Size(layers=24, width=2048, heads=16, ffn=8192, embedding=128),
        "xxlarge": Size(layers=12, width=4096, heads=64, ffn=16384, embedding=128),
    },
)

FAMILIES = (ALBERT,)
