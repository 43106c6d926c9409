"""Tokenizer from a word list, such as that of a model trained elsewhere."""

from __future__ import annotations

import json
from collections.abc import Sequence

from megaptm.errors import UserError
from megaptm.tokenizers.special import CONFIG_KEYS
from megaptm.tokenizers.tokenizer import Tokenizer

ROLES = {"unknown": "<unk>", "begin": "<s>", "end": "</s>"}
"""Required words, in lower or upper case."""


def tokenizer_of_words(words: Sequence[str], place: str) -> Tokenizer:
    """Make a tokenizer of words in the order of their ids, which splits at spaces only. `place` is the source of the
    list."""
    from tokenizers import AddedToken, models, pre_tokenizers
    from tokenizers import Tokenizer as Library

    ids = {word: number for number, word in enumerate(words)}
    if len(ids) < len(words) or "" in ids:
        number = next(number for number, word in enumerate(words) if not word or ids[word] != number)
        what = f"{words[number]}, which a later line has too" if words[number] else "nothing in it"
        raise UserError(f"{place}: line {number + 1} has {what}: give each word one line.")
    named = {role: next((one for one in (name, name.upper()) if one in ids), None) for role, name in ROLES.items()}
    if lacking := [role for role, name in named.items() if name is None]:
        raise UserError(f"{place} has no line {ROLES[lacking[0]]}, nor {ROLES[lacking[0]].upper()}: add one.")
    library = Library(models.WordLevel(vocab=ids, unk_token=named["unknown"]))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    for name in named.values():
        library.add_special_tokens([AddedToken(str(name), normalized=False, special=True)])
    config = {CONFIG_KEYS[role]: name for role, name in named.items()}
    general = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    return Tokenizer(json.loads(library.to_str()), {**general, **config})
