"""Texts that are like another: of images that may look alike, or wrong for an image in the hardest way (UNIMO,
arXiv:2012.15409, section 2.1)."""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

COMMON = 10_000
"""Texts beyond which a word is not looked at: those that have it are too many to compare, and it says little."""


def most_alike(texts: Sequence[Sequence[Hashable]], *, number: int, common: int = COMMON) -> list[list[int]]:
    """For each text, a sequence of words, at most so many others by their numbers, the most alike first; the first of
    equals first.

    Alike is the cosine of vectors that have of each word how often it comes times the logarithm of the number of texts
    over that of those with the word (TF-IDF, cosine as in Salton & Buckley, 1988). Texts with nothing in common are not
    alike, and those with the same words are left out, for they say the same.
    """
    counts = [Counter(text) for text in texts]
    texts_with = Counter(word for words in counts for word in words)
    vectors = [
        _of_length_one(
            {
                word: count * math.log(len(texts) / texts_with[word])
                for word, count in words.items()
                if texts_with[word] <= common
            }
        )
        for words in counts
    ]
    weights: defaultdict[Hashable, list[tuple[int, float]]] = defaultdict(list)
    for one, vector in enumerate(vectors):
        for word, weight in vector.items():
            weights[word].append((one, weight))

    found = []
    for vector, words in zip(vectors, counts, strict=True):
        cosines: defaultdict[int, float] = defaultdict(float)
        for word, weight in vector.items():
            for other, its_weight in weights[word]:
                cosines[other] += weight * its_weight
        others = (other for other in cosines if counts[other] != words)
        found.append(heapq.nsmallest(number, others, key=lambda other: (-cosines[other], other)))
    return found


def _of_length_one(vector: dict[Hashable, float]) -> dict[Hashable, float]:
    """Without what all texts have."""
    length = math.sqrt(sum(weight * weight for weight in vector.values()))
    return {word: weight / length for word, weight in vector.items() if weight}
