"""The kinds of tokenizers, and what is usual for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from megaptm.tokenizers.kinds.bpe import learn_bpe
from megaptm.tokenizers.kinds.byte_bpe import learn_byte_bpe
from megaptm.tokenizers.kinds.char_bpe import learn_char_bpe
from megaptm.tokenizers.kinds.request import VocabularyRequest
from megaptm.tokenizers.kinds.unigram import learn_unigram
from megaptm.tokenizers.kinds.wordpiece import learn_wordpiece
from megaptm.tokenizers.kinds.words import learn_words


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A way to cut texts into tokens."""

    learn: Callable[[Iterable[str], VocabularyRequest], Any]
    """The `tokenizers.Tokenizer` of some texts, the special tokens of `last` not yet in it."""
    specials: str
    """The set of special tokens where nobody says: that of the family that the kind is known from."""
    lowercase: bool | None
    """Whether case is folded where nobody says; None: it never is."""
    unknown: bool = True
    """Whether it needs a token for what has no id."""
    digits: bool = False
    """Whether it can keep each digit apart."""
    spaces: bool = False
    """Whether tokens hold the space before them, so that a mask has to as well."""


KINDS: dict[str, Kind] = {
    "bpe": Kind(learn=learn_bpe, specials="llama", lowercase=None, digits=True, spaces=True),
    "byte-bpe": Kind(learn=learn_byte_bpe, specials="gpt2", lowercase=None, unknown=False, spaces=True),
    "char-bpe": Kind(learn=learn_char_bpe, specials="gpt", lowercase=True),
    "wordpiece": Kind(learn=learn_wordpiece, specials="bert", lowercase=True),
    "unigram": Kind(learn=learn_unigram, specials="t5", lowercase=False, digits=True, spaces=True),
    "words": Kind(learn=learn_words, specials="llama", lowercase=False),
}

__all__ = ["KINDS", "Kind", "VocabularyRequest"]
