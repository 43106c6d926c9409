"""Tokenizers: train, load, save. Importing is cheap, because libraries are imported on first use."""

from megaptm.tokenizers.kinds import KINDS
from megaptm.tokenizers.special_sets import SPECIALS
from megaptm.tokenizers.tokenizer import Tokenizer, find_first_tokens, load_tokenizer
from megaptm.tokenizers.training import check_tokenizer_options, train_tokenizer_on_texts

__all__ = [
    "KINDS",
    "SPECIALS",
    "Tokenizer",
    "check_tokenizer_options",
    "find_first_tokens",
    "load_tokenizer",
    "train_tokenizer_on_texts",
]
