"""Subwords (character n-grams) of words and their rows, compatible with fastText's files."""

# V words, R rows of words and subwords in total

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from megaptm.families.word_vectors.compiled.decorator import compiled

LINE_END = "</s>"
"""fastText's token for the end of a line, which has no subwords."""


@compiled()
def _write_buckets(text, starts, shortest, longest, num_buckets, buckets, ends):
    """Write the buckets of each text's subwords to `buckets` in fastText's order, and the end index of each text to
    `ends`. With an empty `buckets`, only `ends` is written. Return the number of subwords."""
    count = 0
    for word in range(starts.shape[0] - 1):
        first, last = starts[word], starts[word + 1]
        for i in range(first, last):
            if (text[i] & 0xC0) == 0x80:  # continuation byte of a UTF-8 character
                continue
            hash_, j, characters = np.uint32(2166136261), i, 0
            while j < last and characters < longest:
                while True:
                    # FNV-1a over bytes that the released code treats as signed.
                    hash_ = np.uint32((hash_ ^ np.uint32(np.int8(text[j]))) * np.uint32(16777619))
                    j += 1
                    if j >= last or (text[j] & 0xC0) != 0x80:
                        break
                characters += 1
                # A border character alone is not a subword.
                if characters >= shortest and not (characters == 1 and (i == first or j == last)):
                    if buckets.shape[0] > 0:
                        buckets[count] = hash_ % np.uint32(num_buckets)
                    count += 1
        ends[word] = count
    return count


def subword_buckets(words: Sequence[str], ngrams: tuple[int, int], num_buckets: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the buckets of words' subwords (fastText): int64 [V + 1], the start index of each word's subwords, and
    int64 [R], their buckets.

    A subword is `ngrams` characters of `<word>`; the whole word with its borders is one too if it is short enough.
    """
    texts = [b"" if word == LINE_END else f"<{word}>".encode() for word in words]
    text = np.frombuffer(b"".join(texts), np.uint8)
    starts, ends = np.cumsum([0, *map(len, texts)]), np.zeros(len(texts), np.int64)
    buckets = np.zeros(_write_buckets(text, starts, *ngrams, num_buckets, np.zeros(0, np.int64), ends), np.int64)
    if len(buckets):
        _write_buckets(text, starts, *ngrams, num_buckets, buckets, ends)
    return np.concatenate(([0], ends)), buckets


def subword_rows(words: Sequence[str], ngrams: tuple[int, int], num_buckets: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the table rows of each word and its subwords (fastText), as two arrays:

    - int64 [V + 1]: index in the second array at which each word begins;
    - int64 [R]: for each word its own row, then the rows of its subwords. The table has subwords after all words.
    """
    starts, buckets = subword_buckets(words, ngrams, num_buckets)
    own_rows = np.arange(len(words))
    return starts + np.arange(len(starts)), np.insert(buckets + len(words), starts[:-1], own_rows)
