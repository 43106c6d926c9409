"""Special tokens of CLIP's tokenizer."""

from __future__ import annotations

from megaptm.tokenizers.special_sets import SpecialSet

# The end token has the largest id, which CLIP uses to find it, and is also the padding.
CLIP = SpecialSet(
    last=("<|startoftext|>", "<|endoftext|>"),
    roles={"begin": "<|startoftext|>", "end": "<|endoftext|>", "pad": "<|endoftext|>"},
    single="<|startoftext|> $A <|endoftext|>",
)

SPECIALS = {"clip": CLIP}
