"""SpanBERT (Joshi et al., 2019): cased BERT on single texts, with masked spans that are also predicted from their
boundaries."""

from megaptm.families.bert import BERT
from megaptm.spec import change

SPANBERT = change(
    BERT,
    name="spanbert",
    paper="arXiv:1907.10529",
    tokenizer={"vocabulary": 28996},
    init={"rule": "normal"},
    heads=("mlm", "span-boundary"),
    objectives=("masked-lm-span-boundary", "masked-lm", "masked-lm-whole-word"),
)

FAMILIES = (SPANBERT,)
