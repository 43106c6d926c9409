"""Named objective of MacBERT."""

from megaptm.objectives.masked import MaskedLM, MaskedLMWithQuestion

OBJECTIVES = (
    MaskedLMWithQuestion(
        "sentence-order", MaskedLM(hide="ngrams", length_weights=(0.4, 0.3, 0.2, 0.1), show="similar-words")
    ),
)
