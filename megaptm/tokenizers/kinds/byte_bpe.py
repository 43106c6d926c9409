"""BPE of bytes (GPT-2, RoBERTa). Every text can be encoded, and decoding restores its bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from megaptm.tokenizers.kinds.bpe import remove_special_tokens
from megaptm.tokenizers.kinds.request import VocabularyRequest


def train_byte_bpe(texts: Iterable[str], request: VocabularyRequest) -> Any:
    """Train byte-level BPE: merges of the 256 bytes."""
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, pre_tokenizers, processors, trainers

    request.require_room(256, "256 bytes")
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=request.trained_size,
            special_tokens=list(request.first),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    library = remove_special_tokens(library, {*request.first, *request.last})
    library.decoder = decoders.ByteLevel()
    library.post_processor = processors.ByteLevel(trim_offsets=False)
    return library
