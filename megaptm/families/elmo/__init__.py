"""ELMo (Peters et al., 2018): a forward and a backward recurrent language model over character-based word
embeddings."""

from typing import Any

from megaptm.families.elmo.spec import CharacterInput, ProjectedLSTMSpec
from megaptm.spec import Block, Family, InitSpec, LossSpec, OutputSpec, Size, TokenizerSpec

LAYER = Block(layer=ProjectedLSTMSpec(), visibility="causal")
FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))


def character_inputs(highway: int) -> dict[str, Any]:
    """Return the sizes of ELMo's released word embeddings with a number of highway layers."""
    return {"filters": FILTERS, "highway": highway, "character_width": 16}


# The paper's model is `original`; all sizes are from the options of the released models. Papers do not count the
# softmax.
ELMO = Family(
    name="elmo",
    paper="arXiv:1802.05365",
    tokenizer=TokenizerSpec(kind="words", vocabulary=793_471),
    context=20,
    inputs=(CharacterInput(),),
    stacks={"forwards": LAYER, "backwards": LAYER},
    heads=("bidirectional-lm",),
    reads={"bidirectional-lm": ("forwards", "backwards")},
    output=OutputSpec(tied=False),
    loss=LossSpec(negatives=8192),
    init=InitSpec(rule="megaptm.families.elmo.initial:INITIAL_RULES"),
    objectives=("bidirectional-lm",),
    sizes={
        "small": Size(layers=2, width=128, heads=1, ffn=1024, memory=1, inputs=character_inputs(1)),
        "medium": Size(layers=2, width=256, heads=1, ffn=2048, memory=1, inputs=character_inputs(1)),
        "original": Size(layers=2, width=512, heads=1, ffn=4096, memory=1, inputs=character_inputs(2)),
    },
)

FAMILIES = (ELMO,)
