"""Special tokens of DeBERTa's tokenizer."""

from __future__ import annotations

from megaptm.tokenizers.special_sets import BERT, SpecialSet

DEBERTA = SpecialSet(
    first=("[PAD]", "[CLS]", "[SEP]", "[UNK]"),
    last=("[MASK]",),
    roles={**BERT.roles, "begin": "[CLS]", "end": "[SEP]"},
    single=BERT.single,
    pair=BERT.pair,
)

SPECIALS = {"deberta": DEBERTA}
