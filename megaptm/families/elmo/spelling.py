"""Character ids of words, as in the released code of ELMo."""

# V ids, C characters of a word

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from megaptm.families.elmo.spec import MAX_WORD_LENGTH
from megaptm.objectives.vocabulary import SpecialTokens

NUM_CHARACTERS = 262
"""Number of character ids: 0 is padding, then the 256 byte values, and five marks for starts and ends of words and
texts."""
# Id 0 is padding; a byte has its value plus one.
TEXT_START, TEXT_END, WORD_START, WORD_END, NO_CHARACTER = range(NUM_CHARACTERS - 5, NUM_CHARACTERS)


def character_ids(words: Iterable[str], marks: Mapping[str, int] | None = None) -> np.ndarray:
    """Return ELMo's character ids of words, int16 [V, C]: UTF-8 bytes between two marks. `marks`: words that are a
    single character id (`TEXT_START`, `TEXT_END`)."""
    words, marks = list(words), marks or {}
    table = np.full((len(words), MAX_WORD_LENGTH), NO_CHARACTER, dtype=np.int16)
    table[:, 0] = WORD_START
    for row, word in zip(table, words, strict=True):
        letters = [marks[word]] if word in marks else [1 + byte for byte in word.encode()[: MAX_WORD_LENGTH - 2]]
        row[1 : 1 + len(letters)] = letters
        row[1 + len(letters)] = WORD_END
    return table


def vocabulary_spellings(special: SpecialTokens) -> np.ndarray | None:
    """Return ELMo's character ids of each word of a vocabulary, int16 [V, C]. None if tokens are not words."""
    return special.compute_once(_character_table)


def _character_table(special: SpecialTokens) -> np.ndarray | None:
    if not special.words:
        return None
    marks = {special.begin: TEXT_START, special.end: TEXT_END}
    return character_ids(special.words, {special.words[id_]: mark for id_, mark in marks.items() if id_ is not None})
