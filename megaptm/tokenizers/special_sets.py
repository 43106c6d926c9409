"""Special tokens of published tokenizers: names, ids, roles, and the template of a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

from megaptm.families import Registry, contributions


@dataclass(frozen=True)
class SpecialSet:
    """Set of special tokens for training a tokenizer."""

    roles: Mapping[str, str]
    """Role (a key of `special.CONFIG_KEYS`) -> token. A token may have several roles."""
    first: tuple[str, ...] = ()
    """Special tokens with the first ids 0, 1 ..."""
    last: tuple[str, ...] = ()
    """Special tokens with the highest ids."""
    single: str | None = None
    """Template of one text for `TemplateProcessing` of the tokenizers library; None to add no special tokens."""
    pair: str | None = None
    sentinels: int = 0
    """Default number of `<extra_id_N>` sentinels."""


BERT = SpecialSet(
    first=("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    roles={"pad": "[PAD]", "unknown": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    single="[CLS] $A [SEP]",
    pair="[CLS] $A [SEP] $B:1 [SEP]:1",
)

_SPECIALS: dict[str, SpecialSet] = {
    # GPT had no end-of-text token, which a stream of documents needs.
    "gpt": SpecialSet(first=("<unk>",), last=("</s>",), roles={"unknown": "<unk>", "end": "</s>"}),
    "gpt2": SpecialSet(last=("<|endoftext|>",), roles={"end": "<|endoftext|>"}),
    "bert": BERT,
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
    # Also for mT5.
    "t5": SpecialSet(
        first=("<pad>", "</s>", "<unk>"),
        roles={"pad": "<pad>", "end": "</s>", "unknown": "<unk>"},
        single="$A </s>",
        pair="$A </s> $B </s>",
        sentinels=100,
    ),
    # For translation models. The decoder input starts with the padding token.
    "marian": SpecialSet(
        first=("</s>", "<unk>"),
        last=("<pad>",),
        roles={"pad": "<pad>", "end": "</s>", "unknown": "<unk>"},
        single="$A </s>",
        pair="$A </s> $B </s>",
    ),
    # No `<s>` before a text, in contrast to Llama: no objective here uses it.
    "llama": SpecialSet(first=("<unk>", "<s>", "</s>"), roles={"unknown": "<unk>", "begin": "<s>", "end": "</s>"}),
}
SPECIALS: Registry[SpecialSet] = Registry(
    _SPECIALS, lambda: chain.from_iterable(map(dict.items, contributions("special_sets", "SPECIALS")))
)
"""Sets of special tokens by name."""
