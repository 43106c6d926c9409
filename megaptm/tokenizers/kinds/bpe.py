"""BPE as in SentencePiece (Llama): words include the space before them, and unknown characters are encoded as bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from megaptm.tokenizers.kinds.characters import find_alphabet, normalize_lines
from megaptm.tokenizers.kinds.request import VocabularyRequest


def train_bpe(texts: Iterable[str], request: VocabularyRequest) -> Any:
    """Train SentencePiece's BPE: 256 bytes, characters, then merges.

    A space is added before a text, so that a word has the same tokens at the start and within.
    """
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, pre_tokenizers, trainers

    # Lines, as in SentencePiece: a line end is encoded as a byte and never part of a word.
    lines = list(normalize_lines(texts, lambda line: line))
    first = [*request.first, *(f"<0x{byte:02X}>" for byte in range(256))]
    alphabet = ["▁", *find_alphabet(lines)]
    request.require_room(256 + len(alphabet), f"256 bytes and {len(alphabet)} characters")
    library = Library(models.BPE(unk_token=request.unknown, byte_fallback=True, fuse_unk=True))
    words = pre_tokenizers.Metaspace(prepend_scheme="first")
    digits = [pre_tokenizers.Digits(individual_digits=True)] if request.digits else []
    library.pre_tokenizer = pre_tokenizers.Sequence([*digits, words])
    trainer = trainers.BpeTrainer(
        vocab_size=request.trained_size,
        special_tokens=first,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    library.train_from_iterator(lines, trainer)
    # Afterwards, only merges keep digits apart. As in SentencePiece, digits are split during training only.
    library.pre_tokenizer = words
    library = remove_special_tokens(library, {*request.first, *request.last})
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return library


def remove_special_tokens(library: Any, names: Iterable[str]) -> Any:
    """Return a BPE tokenizer without the tokens that its trainer marked as special.

    Merges that spell one of `names` are removed as well, so that text never becomes a special token.
    """
    from tokenizers import Tokenizer as Library

    content = json.loads(library.to_str())
    merges = [merge for merge in content["model"]["merges"] if "".join(merge) not in names]
    return Library.from_str(
        json.dumps({**content, "added_tokens": [], "model": {**content["model"], "merges": merges}})
    )
