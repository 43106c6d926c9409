"""SpanBERT (Joshi et al., 2019): BERT, cased, on single texts whose hidden spans are also known by their borders."""

from megaptm.families.bert import BERT
from megaptm.spec import change

SPANBERT = change(
    BERT,
    name="spanbert",
    paper="arXiv:1907.10529",
    vocabulary=28996,
    init="normal",
    heads=("mlm", "span-boundary"),
    objectives=("masked-lm-span-boundary", "masked-lm", "masked-lm-whole-word"),
)
