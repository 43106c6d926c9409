"""Pieces of words, and the rows that they share: those of fastText, whose files are read with them."""

# V words, R rows that they and their pieces have, all in all

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from megaptm.words.compiled import compiled

LINE_END = "</s>"
"""fastText's word for the end of a line, which has no pieces."""


@compiled()
def _pieces(text, starts, shortest, longest, buckets, found, ends):
    """Fill `found` with the buckets of each text's pieces, in fastText's order, and `ends` with where each text's end;
    with no room in `found` nothing is written, and how many there are is returned."""
    count = 0
    for word in range(starts.shape[0] - 1):
        first, last = starts[word], starts[word + 1]
        for i in range(first, last):
            if (text[i] & 0xC0) == 0x80:  # within a character of several bytes
                continue
            value, j, characters = np.uint32(2166136261), i, 0
            while j < last and characters < longest:
                while True:
                    # FNV-1a of bytes that the released code takes for signed ones.
                    value = np.uint32((value ^ np.uint32(np.int8(text[j]))) * np.uint32(16777619))
                    j += 1
                    if j >= last or (text[j] & 0xC0) != 0x80:
                        break
                characters += 1
                # A border by itself is no piece.
                if characters >= shortest and not (characters == 1 and (i == first or j == last)):
                    if found.shape[0] > 0:
                        found[count] = value % np.uint32(buckets)
                    count += 1
        ends[word] = count
    return count


def pieces_of(words: Sequence[str], ngrams: tuple[int, int], buckets: int) -> tuple[np.ndarray, np.ndarray]:
    """int64 [V + 1] and int64 [R]: where each word's pieces begin, and their buckets.

    A piece is `ngrams` characters of `<word>`, the word whole with its borders among them where it is not too long.
    """
    texts = [b"" if word == LINE_END else f"<{word}>".encode() for word in words]
    text = np.frombuffer(b"".join(texts), np.uint8)
    starts, ends = np.cumsum([0, *map(len, texts)]), np.zeros(len(texts), np.int64)
    found = np.zeros(_pieces(text, starts, *ngrams, buckets, np.zeros(0, np.int64), ends), np.int64)
    if len(found):
        _pieces(text, starts, *ngrams, buckets, found, ends)
    return np.concatenate(([0], ends)), found


def bags_of(words: Sequence[str], ngrams: tuple[int, int], buckets: int) -> tuple[np.ndarray, np.ndarray]:
    """int64 [V + 1] and int64 [R]: where each word's rows begin, and these: its own, then those of its pieces, which
    are behind the rows of all words."""
    starts, found = pieces_of(words, ngrams, buckets)
    numbers = np.arange(len(words))
    return starts + np.arange(len(starts)), np.insert(found + len(words), starts[:-1], numbers)
