"""RoBERTa (Liu et al., 2019): BERT without segments and sentence pairs, on byte-level BPE; other changes are in its
configs."""

from megaptm.families.bert import BERT
from megaptm.spec import SegmentInput, TokenInput, change

ROBERTA = change(
    BERT,
    name="roberta",
    paper="arXiv:1907.11692",
    tokenizer={"kind": "byte-bpe", "vocabulary": 50265, "specials": "roberta"},
    # As in fairseq, where the positions of a text start after that of padding, whose id is 1.
    embedding={"first_position": 2},
    # A segment table with one row, added to all tokens: it keeps the encoder identical to BERT's.
    inputs=(TokenInput(), SegmentInput(rows=1)),
    init={"rule": "normal"},
    stacks={"encoder": change(BERT.last_block, norm={"eps": 1e-5})},
    heads=("mlm",),
    objectives=("masked-lm", "masked-lm-whole-word"),
)

FAMILIES = (ROBERTA,)
