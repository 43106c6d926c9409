"""WordPiece (BERT): the longest piece at the start of a word, then `##` pieces that continue it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from megaptm.tokenizers.kinds.characters import find_alphabet
from megaptm.tokenizers.kinds.request import VocabularyRequest


def train_wordpiece(texts: Iterable[str], request: VocabularyRequest) -> Any:
    """Train WordPiece: characters, their `##` forms, then longer pieces."""
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

    normalizer = normalizers.BertNormalizer(lowercase=request.lowercase)
    texts = [normalizer.normalize_str(text) for text in texts]
    alphabet = find_alphabet(texts)
    # The normalizer puts spaces around a Chinese character, so it is a word and needs no `##` form.
    within = [character for character in alphabet if normalizer.normalize_str(character) != f" {character} "]
    # The trainer numbers `##` characters in the order of a hash table with a random seed, and breaks ties by number.
    # All characters are passed in advance, so that none is left to number.
    forms = [*alphabet, *(f"##{character}" for character in within)]
    request.require_room(
        len(forms), f"two forms of each of the {len(alphabet)} characters of this text (one of Chinese characters)"
    )
    trained = Library(models.WordPiece(unk_token=request.unknown))
    trained.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trained.train_from_iterator(
        texts,
        trainers.WordPieceTrainer(
            vocab_size=request.trained_size,
            special_tokens=[*request.first, *forms],
            limit_alphabet=len(alphabet),
            show_progress=False,
        ),
    )
    library = Library(models.WordPiece(trained.get_vocab(), unk_token=request.unknown))
    library.normalizer = normalizer
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    return library
