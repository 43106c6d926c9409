"""Text to ids and back: train, load, save. Cheap to import; the libraries that do the work come on first use."""

from megaptm.tokenizers.tokenizer import Tokenizer, load, starts_of
from megaptm.tokenizers.training import KINDS, train

__all__ = ["KINDS", "Tokenizer", "load", "starts_of", "train"]
