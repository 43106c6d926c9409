"""Character ids of words, as in the released code of ELMo."""

# V ids, C characters of a word

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from megaptm.batch import MAX_WORD_LENGTH, NUM_CHARACTERS

# Id 0 is padding; a byte has its value plus one.
TEXT_START, TEXT_END, WORD_START, WORD_END, NO_CHARACTER = range(NUM_CHARACTERS - 5, NUM_CHARACTERS)


def character_ids(words: Iterable[str], marks: Mapping[str, int] | None = None) -> np.ndarray:
    """Return character ids of words, int16 [V, C]: UTF-8 bytes between two marks. `marks`: words that are a single
    character id (`TEXT_START`, `TEXT_END`)."""
    words, marks = list(words), marks or {}
    table = np.full((len(words), MAX_WORD_LENGTH), NO_CHARACTER, dtype=np.int16)
    table[:, 0] = WORD_START
    for row, word in zip(table, words, strict=True):
        letters = [marks[word]] if word in marks else [1 + byte for byte in word.encode()[: MAX_WORD_LENGTH - 2]]
        row[1 : 1 + len(letters)] = letters
        row[1 + len(letters)] = WORD_END
    return table
