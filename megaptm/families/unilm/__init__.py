"""UniLM (Dong et al., 2019): BERT with an attention mask that follows from the field `order`."""

from megaptm.families.bert import BERT
from megaptm.spec import Family, SegmentInput, TokenInput, change

UNILM: Family = change(
    BERT,
    name="unilm",
    paper="arXiv:1905.03197",
    tokenizer={"vocabulary": 28996},
    inputs=(TokenInput(), SegmentInput(rows=6)),
    init={"rule": "normal"},
    stacks={"encoder": change(BERT.last_block, visibility="ordered")},
    objectives=("unilm",),
)

FAMILIES = (UNILM,)
