"""Count words that a tokenizer maps to the unknown token, by language of their documents."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from data_pipeline.document import Document
from megaptm.tokenizers import Tokenizer

MAX_SHARE = 0.01
"""Maximum share of unknown words in a language without a warning."""
MAX_WORDS = 100_000
"""Maximum words of a language counted per shard: enough for a reliable share at negligible cost."""
SCRIPT_CHARACTERS = 1000
"""Characters of a document used to determine its script."""
EXAMPLE_CHARACTERS = 40
# Chinese and Japanese have no spaces, so each character counts as a word.
WORD = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]|[^\s\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+")


@dataclass
class UnknownWords:
    """Number of words of a language, and of words that contain an unknown token."""

    words: int = 0
    unknown: int = 0
    example: str = ""

    @property
    def share(self) -> float:
        return self.unknown / self.words if self.words else 0.0


def count_unknown_words(
    document: Document, ids: np.ndarray, tokenizer: Tokenizer, counts: dict[str, UnknownWords]
) -> None:
    """Count the words of a document, and those that the tokenizer does not know; `ids` are its tokens."""
    if tokenizer.unknown is None:
        return
    count = counts.setdefault(_language_of(document), UnknownWords())
    if count.words >= MAX_WORDS:
        return
    words = WORD.findall(document.text)
    count.words += len(words)
    if tokenizer.unknown not in ids:
        return
    distinct = list(dict.fromkeys(words))
    unknown = {
        word
        for word, tokens in zip(distinct, tokenizer.encode_batch(distinct), strict=True)
        if tokenizer.unknown in tokens
    }
    count.unknown += sum(word in unknown for word in words)
    if unknown and not count.example:
        first = next(word for word in distinct if word in unknown)
        count.example = "".join(filter(str.isprintable, first))[:EXAMPLE_CHARACTERS]


def _language_of(document: Document) -> str:
    """Return the language of a document, from its notes, or else its most frequent script, for example `Hangul`."""
    if isinstance(language := document.notes.get("language"), str) and language:
        return language
    beginning = document.text[:SCRIPT_CHARACTERS]
    if beginning.isascii():
        return "Latin"
    scripts = Counter(unicodedata.name(letter, "other").split()[0] for letter in beginning if letter.isalpha())
    return min(scripts, key=lambda script: (-scripts[script], script)).title() if scripts else "Latin"


def merge_unknown_words(counts: Iterable[Mapping[str, UnknownWords]]) -> dict[str, UnknownWords]:
    """Sum the counts of unknown words over shards."""
    sums: dict[str, UnknownWords] = {}
    for shard in counts:
        for language, count in shard.items():
            total = sums.setdefault(language, UnknownWords())
            total.words += count.words
            total.unknown += count.unknown
            total.example = total.example or count.example
    return dict(sorted(sums.items()))


def describe_unknown_words(counts: Mapping[str, UnknownWords]) -> str:
    """Return the share of unknown words in each language as text."""
    return f"unknown words: {', '.join(f'{name} {count.share:.1%}' for name, count in counts.items())}"


def warn_of_unknown_words(counts: Mapping[str, UnknownWords], tokenizer: Tokenizer) -> list[str]:
    """Return a warning for each language of a corpus with too many words that the tokenizer does not know. Kind `words`
    is excluded: it is designed that way."""
    if tokenizer.kind == "words":
        return []
    return [
        f"{count.share:.1%} of the words in {language} documents are unknown to the tokenizer and lost, for example "
        f"`{count.example}`: add the step normalize-unicode if its letters are decomposed, train the tokenizer on such "
        "text too, or use kind byte-bpe or bpe, which can spell every word"
        for language, count in counts.items()
        if count.share > MAX_SHARE
    ]
