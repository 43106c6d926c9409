"""ELECTRA (Clark et al., 2020)."""

from megaptm.families.bert import BERT
from megaptm.families.electra.spec import GeneratorInput
from megaptm.spec import Family, Size, change

LAYER = BERT.last_block


def _with_generator(discriminator: Size, *, width: int) -> Size:
    """Return the size of ELECTRA with a generator of the same depth and another width: heads of width 64, FFN four
    times as wide."""
    return change(
        discriminator,
        stacks={"generator": Size(layers=discriminator.layers, width=width, heads=width // 64, ffn=4 * width)},
    )


SMALL = Size(layers=12, width=256, heads=4, ffn=1024, embedding=128)
BASE = Size(layers=12, width=768, heads=12, ffn=3072)
LARGE = Size(layers=24, width=1024, heads=16, ffn=4096)

ELECTRA: Family = change(
    BERT,
    name="electra",
    paper="arXiv:2003.10555",
    stacks={"generator": LAYER, "discriminator": LAYER},
    heads=("mlm", "replaced-token"),
    reads={"mlm": "generator"},
    sampled={"discriminator": GeneratorInput(head="mlm")},
    objectives=("replaced-token-detection",),
    # Table 6 of the paper: a quarter, a third and a quarter of the discriminator's width.
    sizes={
        "small": _with_generator(SMALL, width=64),
        "base": _with_generator(BASE, width=256),
        "large": _with_generator(LARGE, width=256),
    },
)

FAMILIES = (ELECTRA,)
