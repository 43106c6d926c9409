"""Longformer (Beltagy et al., 2020): RoBERTa for long texts, with attention in a window and to a few global tokens."""

from megaptm.families.longformer.spec import WindowSpec
from megaptm.families.roberta import ROBERTA
from megaptm.spec import change

# Section 5: initialized from RoBERTa, with its 512 positions copied eight times (`megaptm import hf`).
LONGFORMER = change(
    ROBERTA,
    name="longformer",
    paper="arXiv:2004.05150",
    context=4096,
    stacks={"encoder": change(ROBERTA.last_block, attention=WindowSpec(window=512))},
    objectives=("masked-lm",),
)

FAMILIES = (LONGFORMER,)
