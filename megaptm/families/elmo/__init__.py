"""ELMo (Peters et al., 2018): a forward and a backward recurrent language model over character-based word
embeddings."""

from megaptm.families.elmo.spec import CharacterInput
from megaptm.spec import Block, Family, InitSpec, LossSpec, LSTMSpec, OutputSpec, Size, TokenizerSpec

LAYER = Block(recurrent=LSTMSpec(kind="lstm"), visibility="causal")
FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))

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
    init=InitSpec(rule="elmo"),
    objectives=("bidirectional-lm",),
    sizes={
        "small": Size(layers=2, width=128, heads=1, ffn=1024, memory=1, filters=FILTERS, highway=1),
        "medium": Size(layers=2, width=256, heads=1, ffn=2048, memory=1, filters=FILTERS, highway=1),
        "original": Size(layers=2, width=512, heads=1, ffn=4096, memory=1, filters=FILTERS, highway=2),
    },
)

FAMILIES = (ELMO,)
