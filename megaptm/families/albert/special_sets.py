"""Special tokens of ALBERT's tokenizer."""

from __future__ import annotations

from megaptm.tokenizers.special_sets import BERT, SpecialSet

ALBERT = SpecialSet(
    first=("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
    roles={**BERT.roles, "pad": "<pad>", "unknown": "<unk>", "begin": "[CLS]", "end": "[SEP]"},
    single=BERT.single,
    pair=BERT.pair,
)

SPECIALS = {"albert": ALBERT}
