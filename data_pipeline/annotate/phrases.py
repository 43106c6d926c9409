"""Phrases found by a Chinese segmenter, listed in a file, or returned by a function.

A function takes a text and returns (start, end) in characters for each phrase.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

from data_pipeline.annotate.dictionary import read_words
from data_pipeline.annotate.tags import PhraseMatcher
from data_pipeline.annotate.words import HAN_RUN, load_segmenter
from data_pipeline.document import Document
from data_pipeline.functions import is_function, load_function

WORDS = "words"
SETTING = "annotate.phrases"


def find_phrases(name: str, document: Document) -> list[tuple[int, int]]:
    """Return the validated phrases that a phrase finder marks in a document. Raises `ValueError`, or any exception of
    the function."""
    phrases = [(int(first), int(stop)) for first, stop in load_phrase_finder(name)(document.text)]
    for first, stop in phrases:
        if not 0 <= first < stop <= len(document.text):
            raise ValueError(f"{name} returned {(first, stop)} for a text of {len(document.text):,} characters")
    return phrases


@lru_cache(maxsize=8)
def load_phrase_finder(name: str) -> Callable[[str], Iterable[tuple[int, int]]]:
    """Return the function that a recipe names: text -> (start, end) of each phrase."""
    if name == WORDS:
        return _chinese_words
    if is_function(name):
        function: Callable[[str], Iterable[tuple[int, int]]] = load_function(name, SETTING)
        return function
    phrases = PhraseMatcher(dict.fromkeys(read_words(name, SETTING), ""))
    return lambda text: ((first, stop) for first, stop, _ in phrases(text))


def _chinese_words(text: str) -> Iterator[tuple[int, int]]:
    """Yield the jieba words of more than one Chinese character."""
    segment = load_segmenter(WORDS)
    for run in HAN_RUN.finditer(text):
        at = run.start()
        for word in segment(run[0]):
            if len(word) > 1:
                yield at, at + len(word)
            at += len(word)
