"""Kinds of tokenizers, and their defaults."""

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
    """Algorithm that divides texts into tokens."""

    learn: Callable[[Iterable[str], VocabularyRequest], Any]
    """Training function: returns a `tokenizers.Tokenizer`, without the special tokens in `last`."""
    specials: str
    """Default set of special tokens: that of the family known for this kind."""
    lowercase: bool | None
    """Default of case folding; None if it is not supported."""
    unknown: bool = True
    """Whether the kind needs an unknown token."""
    digits: bool = False
    """Whether each digit can be a separate token."""
    spaces: bool = False
    """Whether tokens include the space before them, as the mask token must then, too."""


KINDS: dict[str, Kind] = {
    "bpe": Kind(learn=learn_bpe, specials="llama", lowercase=None, digits=True, spaces=True),
    "byte-bpe": Kind(learn=learn_byte_bpe, specials="gpt2", lowercase=None, unknown=False, spaces=True),
    "char-bpe": Kind(learn=learn_char_bpe, specials="gpt", lowercase=True),
    "wordpiece": Kind(learn=learn_wordpiece, specials="bert", lowercase=True),
    "unigram": Kind(learn=learn_unigram, specials="t5", lowercase=False, digits=True, spaces=True),
    "words": Kind(learn=learn_words, specials="llama", lowercase=False),
}

__all__ = ["KINDS", "Kind", "VocabularyRequest"]
