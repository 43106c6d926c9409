"""Tokenizer from a word list, such as that of a model trained elsewhere."""

from __future__ import annotations

import json
from collections.abc import Sequence

from megaptm.errors import UserError
from megaptm.tokenizers.special import CONFIG_KEYS
from megaptm.tokenizers.tokenizer import Tokenizer

ROLES = {"unknown": "<unk>", "begin": "<s>", "end": "</s>"}
"""Special tokens that a word list must contain, in lower or upper case."""


def make_word_tokenizer(words: Sequence[str], source: str) -> Tokenizer:
    """Make a tokenizer from a list of words in the order of their ids, which splits at spaces only. `source`: file
    of the list, for error messages."""
    from tokenizers import AddedToken, models, pre_tokenizers
    from tokenizers import Tokenizer as Library

    ids = {word: number for number, word in enumerate(words)}
    if len(ids) < len(words) or "" in ids:
        index = next(number for number, word in enumerate(words) if not word or ids[word] != number)
        mistake = f"repeats the word {words[index]}" if words[index] else "is empty"
        raise UserError(f"{source}: line {index + 1} {mistake}: give each word one line.")
    names = {
        role: next((spelling for spelling in (name, name.upper()) if spelling in ids), None)
        for role, name in ROLES.items()
    }
    if missing := [role for role, name in names.items() if name is None]:
        raise UserError(f"{source} has neither a line {ROLES[missing[0]]} nor {ROLES[missing[0]].upper()}: add one.")
    library = Library(models.WordLevel(vocab=ids, unk_token=names["unknown"]))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    for name in names.values():
        library.add_special_tokens([AddedToken(str(name), normalized=False, special=True)])
    config = {CONFIG_KEYS[role]: name for role, name in names.items()}
    general = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    return Tokenizer(json.loads(library.to_str()), {**general, **config})
