"""BPE of characters within words. The last token of a word is marked with `</w>` (GPT)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from megaptm.tokenizers.kinds.bpe import remove_special_tokens
from megaptm.tokenizers.kinds.characters import find_alphabet
from megaptm.tokenizers.kinds.request import VocabularyRequest

END_OF_WORD = "</w>"


def train_char_bpe(texts: Iterable[str], request: VocabularyRequest) -> Any:
    """Train character-level BPE: characters, their forms at the end of a word, then merges."""
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

    normalizer = normalizers.BertNormalizer(lowercase=request.lowercase)
    texts = [normalizer.normalize_str(text) for text in texts]
    alphabet = find_alphabet(texts)
    # All forms are passed as special tokens, because the trainer would number them in the order of a hash table with a
    # random seed.
    forms = [*alphabet, *(f"{character}{END_OF_WORD}" for character in alphabet)]
    request.require_room(len(forms), f"two forms of each of the {len(alphabet)} characters of this text")
    library = Library(models.BPE(unk_token=request.unknown, end_of_word_suffix=END_OF_WORD))
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=request.trained_size,
            special_tokens=[*request.first, *forms],
            limit_alphabet=len(alphabet),
            end_of_word_suffix=END_OF_WORD,
            show_progress=False,
        ),
    )
    library = remove_special_tokens(library, {*request.first, *request.last})
    library.normalizer = normalizer
    library.decoder = decoders.BPEDecoder(suffix=END_OF_WORD)
    return library
