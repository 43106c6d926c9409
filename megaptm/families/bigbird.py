"""BigBird (Zaheer et al., 2020): an encoder whose blocks of places see their neighbors, some drawn ones, the first and
the last."""

from megaptm.families.bert import BERT
from megaptm.spec import change

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
