"""BigBird (Zaheer et al., 2020): an encoder whose blocks of places see their neighbors, some drawn ones, the first and
the last."""

from megaptm.families.bert import BERT
from megaptm.spec import change

# Section 3: a place that sees all and is seen by all, a star among what is seen, is enough for an encoder to come near
# any continuous function of a text, and for one with a decoder to compute what any program does, as with full
# attention. But what that finds in one layer (for each vector the one that is farthest) may take here nearly as many
# layers as there are places.
# Appendix E.1, table 8 (ITC): blocks of 64, of which each sees three in a row, two that see all, and three drawn ones.
BIGBIRD = change(
    BERT,
    name="bigbird",
    paper="arXiv:2007.14062",
    vocabulary=50358,
    tokenizer="unigram",
    specials="albert",
    context=4096,
    stacks={"encoder": change(BERT.last_block, attention="blocks", block=64, random_blocks=3, ffn="gelu-tanh")},
    heads=("mlm",),
    objectives=("masked-lm",),
)
