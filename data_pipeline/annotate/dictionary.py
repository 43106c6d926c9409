"""Segment text with a word list by greedy longest match from left to right. No library is needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from megaptm.errors import UserError
from megaptm.storage import read_table_lines

SETTING = "annotate.chinese"


class DictionarySegmenter:
    """Segmenter that splits text into the words of a word list. A character that starts no known word is a word by
    itself."""

    def __init__(self, words: Iterable[str]):
        self._words = frozenset(words)
        self._longest = max(map(len, self._words), default=1)

    def __call__(self, text: str) -> Iterator[str]:
        at = 0
        while at < len(text):
            lengths = range(min(self._longest, len(text) - at), 1, -1)
            length = next((length for length in lengths if text[at : at + length] in self._words), 1)
            yield text[at : at + length]
            at += length


@lru_cache(maxsize=4)
def read_dictionary(path: str) -> DictionarySegmenter:
    """Read the word list of a segmenter: the first field of each line is a word. Further fields, such as frequencies,
    and lines that start with # are ignored."""
    return DictionarySegmenter(line.split()[0] for line in read_words(path, SETTING))


def read_words(path: str, setting: str) -> list[str]:
    """Return the lines of a word list, without blank lines and lines that start with #."""
    words = [line.strip() for _, line in read_table_lines(path, name=f"{setting}: {path}")]
    if not words:
        raise UserError(f"{setting}: {path} has no words: add one per line.")
    return words
