"""The special tokens of published tokenizers: their names and ids, what each is for, what is put around a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class SpecialSet:
    """Special tokens that a tokenizer is trained with."""

    roles: Mapping[str, str]
    """Role (a key of `special.CONFIG_KEYS`) -> the token that has it; one token may have several."""
    first: tuple[str, ...] = ()
    """Those with the ids 0, 1 ..."""
    last: tuple[str, ...] = ()
    """Those with the ids behind all others."""
    single: str | None = None
    """One text, as the `tokenizers` library's TemplateProcessing says it; None: nothing is put around a text."""
    pair: str | None = None
    sentinels: int = 0
    """How many `<extra_id_N>` there are where nobody says."""


BERT = SpecialSet(
    first=("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    roles={"pad": "[PAD]", "unknown": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    single="[CLS] $A [SEP]",
    pair="[CLS] $A [SEP] $B:1 [SEP]:1",
)

SPECIALS: dict[str, SpecialSet] = {
    # GPT had no token for the end of a text, which a stream of documents needs.
    "gpt": SpecialSet(first=("<unk>",), last=("</s>",), roles={"unknown": "<unk>", "end": "</s>"}),
    "gpt2": SpecialSet(last=("<|endoftext|>",), roles={"end": "<|endoftext|>"}),
    "bert": BERT,
    # Also BART's.
    "roberta": SpecialSet(
        first=("<s>", "<pad>", "</s>", "<unk>"),
        last=("<mask>",),
        roles={
            "begin": "<s>",
            "cls": "<s>",
            "end": "</s>",
            "sep": "</s>",
            "pad": "<pad>",
            "unknown": "<unk>",
            "mask": "<mask>",
        },
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
    ),
    "albert": SpecialSet(
        first=("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
        roles={**BERT.roles, "pad": "<pad>", "unknown": "<unk>", "begin": "[CLS]", "end": "[SEP]"},
        single=BERT.single,
        pair=BERT.pair,
    ),
    "deberta": SpecialSet(
        first=("[PAD]", "[CLS]", "[SEP]", "[UNK]"),
        last=("[MASK]",),
        roles={**BERT.roles, "begin": "[CLS]", "end": "[SEP]"},
        single=BERT.single,
        pair=BERT.pair,
    ),
    # The end of a text has the largest id, by which CLIP finds it, and stands for what is behind it.
    "clip": SpecialSet(
        last=("<|startoftext|>", "<|endoftext|>"),
        roles={"begin": "<|startoftext|>", "end": "<|endoftext|>", "pad": "<|endoftext|>"},
        single="<|startoftext|> $A <|endoftext|>",
    ),
    # Also mT5's.
    "t5": SpecialSet(
        first=("<pad>", "</s>", "<unk>"),
        roles={"pad": "<pad>", "end": "</s>", "unknown": "<unk>"},
        single="$A </s>",
        pair="$A </s> $B </s>",
        sentinels=100,
    ),
    # Of translators; a text that is said begins after the padding.
    "marian": SpecialSet(
        first=("</s>", "<unk>"),
        last=("<pad>",),
        roles={"pad": "<pad>", "end": "</s>", "unknown": "<unk>"},
        single="$A </s>",
        pair="$A </s> $B </s>",
    ),
    # No `<s>` around a text, as Llama's would put there: no objective here shows a model one.
    "llama": SpecialSet(first=("<unk>", "<s>", "</s>"), roles={"unknown": "<unk>", "begin": "<s>", "end": "</s>"}),
}
