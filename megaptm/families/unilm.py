"""UniLM (Dong et al., 2019): BERT whose places see what an order says."""

from megaptm.families.bert import BERT
from megaptm.spec import Family, change

UNILM: Family = change(
    BERT,
    name="unilm",
    paper="arXiv:1905.03197",
    vocabulary=28996,
    segments=6,
    init="normal",
    stacks={"encoder": change(BERT.last_block, visibility="ordered")},
    objectives=("unilm",),
)
