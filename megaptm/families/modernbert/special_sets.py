"""Special tokens of ModernBERT's tokenizer, after the vocabulary. No end-of-text token: `[SEP]` ends a text."""

from megaptm.tokenizers.special_sets import SpecialSet

SPECIALS = {
    "modernbert": SpecialSet(
        last=("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"),
        roles={
            "unknown": "[UNK]",
            "begin": "[CLS]",
            "cls": "[CLS]",
            "end": "[SEP]",
            "sep": "[SEP]",
            "pad": "[PAD]",
            "mask": "[MASK]",
        },
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
    )
}
