"""Kinds of tokenizers, and their defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from megaptm.tokenizers.kinds.bpe import train_bpe
from megaptm.tokenizers.kinds.byte_bpe import train_byte_bpe
from megaptm.tokenizers.kinds.char_bpe import train_char_bpe
from megaptm.tokenizers.kinds.request import VocabularyRequest
from megaptm.tokenizers.kinds.unigram import train_unigram
from megaptm.tokenizers.kinds.wordpiece import train_wordpiece
from megaptm.tokenizers.kinds.words import train_words


@dataclass(frozen=True, kw_only=True)
class TokenizerKind:
    """Kind of tokenizer: the algorithm that divides texts into tokens."""

    train: Callable[[Iterable[str], VocabularyRequest], Any]
    """Function that trains the tokenizer: returns a `tokenizers.Tokenizer` without the special tokens in `last`."""
    specials: str
    """Default set of special tokens: that of the family known for this kind of tokenizer."""
    lowercase: bool | None
    """Default of case folding; None if the kind does not support it."""
    needs_unknown: bool = True
    """Whether this kind of tokenizer needs an unknown token."""
    splits_digits: bool = False
    """Whether each digit can be a separate token."""
    includes_spaces: bool = False
    """Whether tokens include the space before them. The mask token then includes it too."""


KINDS: dict[str, TokenizerKind] = {
    "bpe": TokenizerKind(train=train_bpe, specials="llama", lowercase=None, splits_digits=True, includes_spaces=True),
    "byte-bpe": TokenizerKind(
        train=train_byte_bpe, specials="gpt2", lowercase=None, needs_unknown=False, includes_spaces=True
    ),
    "char-bpe": TokenizerKind(train=train_char_bpe, specials="gpt", lowercase=True),
    "wordpiece": TokenizerKind(train=train_wordpiece, specials="bert", lowercase=True),
    "unigram": TokenizerKind(
        train=train_unigram, specials="t5", lowercase=False, splits_digits=True, includes_spaces=True
    ),
    "words": TokenizerKind(train=train_words, specials="llama", lowercase=False),
}

__all__ = ["KINDS", "TokenizerKind", "VocabularyRequest"]
