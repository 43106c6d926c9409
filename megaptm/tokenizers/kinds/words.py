"""Tokens that are complete words. The most frequent words have ids, and all others share one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from megaptm.tokenizers.kinds.request import VocabularyRequest


def train_words(texts: Iterable[str], request: VocabularyRequest) -> Any:
    """Train a vocabulary of words: count BERT's words (a punctuation mark or a Chinese character is a word), the most
    frequent first."""
    from tokenizers import Tokenizer as Library
    from tokenizers import models, normalizers, pre_tokenizers, trainers

    request.require_room(1, "a word")
    library = Library(models.WordLevel(unk_token=request.unknown))
    library.normalizer = normalizers.BertNormalizer(lowercase=request.lowercase)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordLevelTrainer(
        vocab_size=request.trained_size, special_tokens=list(request.first), show_progress=False
    )
    library.train_from_iterator(texts, trainer)
    return library
