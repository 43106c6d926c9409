"""BigBird (Zaheer et al., 2020): an encoder with attention from blocks to neighboring, random, first and last
blocks."""

from megaptm.families.bert import BERT
from megaptm.families.bigbird.spec import BlockSparseSpec
from megaptm.spec import change

# Section 3: with one global position, which attends to all and is attended by all, an encoder approximates any
# continuous function of a sequence, and an encoder with a decoder is Turing complete, as with full attention. However,
# a problem that full attention solves in one layer (for each vector the farthest one) may need nearly as many layers as
# there are positions.
#
# Appendix E.1, table 8 (ITC): blocks of 64. Each attends to three consecutive blocks, two global and three random ones.
BIGBIRD = change(
    BERT,
    name="bigbird",
    paper="arXiv:2007.14062",
    tokenizer={"kind": "unigram", "vocabulary": 50358, "specials": "albert"},
    context=4096,
    stacks={
        "encoder": change(
            BERT.last_block,
            attention=BlockSparseSpec(block_size=64, num_random_blocks=3),
            ffn={"activation": "gelu-tanh"},
        )
    },
    heads=("mlm",),
    objectives=("masked-lm",),
)

FAMILIES = (BIGBIRD,)
