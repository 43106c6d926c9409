"""UNITER (Chen et al., 2019): BERT over a text, followed by image regions that an object detector found."""

from megaptm.families.bert import BERT
from megaptm.families.uniter.spec import RegionInput
from megaptm.spec import change

DETECTOR = (2048, 1601)
"""Sizes of bottom-up attention (arXiv:1707.07998): features of a region; classes of Visual Genome, preceded by the
background class."""

# As in the released code: regions have their own segment, and three norms; the paper's figure has one norm. Papers
# count the encoder alone (86M, 303M).
UNITER = change(
    BERT,
    name="uniter",
    paper="arXiv:1909.11740",
    tokenizer={"vocabulary": 28_996},
    inputs=(*BERT.inputs, RegionInput()),
    heads=("mlm", "itm", "wra", "mrfr", "mrc-kl"),
    objectives=(
        "uniter",
        "image-text-masked-lm",
        "masked-regions",
        "masked-regions-class",
        "masked-regions-distribution",
        "image-text-matching",
    ),
    sizes={name: change(size, inputs={"detector": DETECTOR}) for name, size in BERT.sizes.items()},
)

FAMILIES = (UNITER,)
