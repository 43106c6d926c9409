"""DistilBERT and TinyBERT: BERT with fewer layers, distilled from a larger model
(docs/distillation.md)."""

from megaptm.families.bert import BERT
from megaptm.spec import Size, TokenInput, change

# Sanh et al., 2019, section 3: without segments and pooler; half of the layers.
DISTILBERT = change(
    BERT,
    name="distilbert",
    paper="arXiv:1910.01108",
    inputs=(TokenInput(),),
    init={"rule": "normal"},
    heads=("mlm",),
    objectives=("masked-lm", "masked-lm-whole-word"),
    sizes={"base": Size(layers=6, width=768, heads=12, ffn=3072)},
)

# Jiao et al., 2020, section 4.2; layers x width, as in the names of its released models.
TINYBERT = change(
    BERT,
    name="tinybert",
    paper="arXiv:1909.10351",
    sizes={
        "4x312": Size(layers=4, width=312, heads=12, ffn=1200),
        "6x768": Size(layers=6, width=768, heads=12, ffn=3072),
    },
)

FAMILIES = (DISTILBERT, TINYBERT)
