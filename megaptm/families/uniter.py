"""UNITER (Chen et al., 2019): BERT over a text and, behind it, regions of an image, which a detector found."""

from megaptm.families.bert import BERT
from megaptm.spec import change

DETECTOR = (2048, 1601)
"""Of bottom-up attention (arXiv:1707.07998): numbers of a region's features; classes of Visual Genome, and the
background before them."""

# As the released code has it: regions are of a segment of their own, and pass three norms; the paper's figure has one.
# Papers count the encoder alone (86M, 303M).
UNITER = change(
    BERT,
    name="uniter",
    paper="arXiv:1909.11740",
    vocabulary=28_996,
    inputs=("token", "segment", "region"),
    heads=("mlm", "itm", "wra", "mrfr", "mrc-kl"),
    objectives=(
        "uniter",
        "image-text-masked-lm",
        "masked-regions",
        "masked-regions-class",
        "masked-regions-distribution",
        "image-text-matching",
    ),
    sizes={name: change(size, detector=DETECTOR) for name, size in BERT.sizes.items()},
)
