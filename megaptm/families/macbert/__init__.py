"""MacBERT (Cui et al., 2020): Chinese BERT with similar words instead of mask tokens, and sentence-order prediction."""

from megaptm.families.bert import BERT
from megaptm.spec import change

MACBERT = change(
    BERT,
    name="macbert",
    paper="arXiv:2004.13922",
    tokenizer={"vocabulary": 21128},
    heads=("mlm", "sentence-order"),
    objectives=(
        "masked-lm-ngrams-similar-words-sentence-order",
        "masked-lm-ngrams-sentence-order",
        "masked-lm-sentence-order",
        "masked-lm",
    ),
)

FAMILIES = (MACBERT,)
