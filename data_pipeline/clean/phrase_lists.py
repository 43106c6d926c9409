"""Lists of phrases, one per line, compared with texts as complete words, without case and punctuation."""

from __future__ import annotations

import numpy as np

from data_pipeline.clean.hash_set import HashSet
from data_pipeline.clean.step import cached_by_file
from data_pipeline.clean.words import Words
from megaptm.storage import read_text_file

PhraseList = dict[int, HashSet]
"""Hashes of phrases by the number of their words."""


@cached_by_file(maxsize=256)
def read_phrase_list(path: str, setting: str) -> PhraseList:
    """Read a file of phrases. Error messages start with `setting`."""
    text = read_text_file(path, name=f"{setting} ({path})", remedy="correct the path")
    hashes_by_size: dict[int, list[np.ndarray]] = {}
    for words in map(Words, text.split("\n")):
        hashes_by_size.setdefault(len(words), []).append(words.ngrams(len(words)))
    return {size: HashSet(np.concatenate(hashes)) for size, hashes in hashes_by_size.items() if size}


def count_listed_words(words: Words, phrases: PhraseList) -> int:
    """Return the number of words of a text that are part of a listed phrase."""
    listed = np.zeros(len(words), bool)
    for size, known in phrases.items():
        starts = known.indexes_of(words.ngrams(size))
        for offset in range(size):
            listed[starts + offset] = True
    return int(listed.sum())
