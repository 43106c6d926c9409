"""RoBERTa (Liu et al., 2019): BERT without segments and pairs of texts, on byte-level BPE; the rest is its recipe."""

from megaptm.families.bert import BERT
from megaptm.spec import change

ROBERTA = change(
    BERT,
    name="roberta",
    paper="arXiv:1907.11692",
    vocabulary=50265,
    tokenizer="byte-bpe",
    specials="roberta",
    # As in fairseq, where the places of a text come after the one of padding, whose id is 1.
    first_position=2,
    # One table row that all tokens add: it is there so that the encoder is BERT's.
    segments=1,
    init="normal",
    stacks={"encoder": change(BERT.last_block, norm_eps=1e-5)},
    heads=("mlm",),
    objectives=("masked-lm", "masked-lm-whole-word"),
)
