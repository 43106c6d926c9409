"""Texts that are like another are those of a plain comparison of all with all."""

from __future__ import annotations

import math

import numpy as np
import pytest

from data_pipeline.images.alike import most_alike


def said(*texts: str) -> list[list[str]]:
    return [text.split() for text in texts]


def compared(texts: list[list[str]], one: int) -> list[int]:
    """All others that share a word that not all have, by their cosine."""
    known = sorted({word for text in texts for word in text})
    idf = [math.log(len(texts) / sum(word in text for text in texts)) for word in known]
    matrix = np.array([[text.count(word) for word in known] for text in texts]) * idf
    lengths = np.linalg.norm(matrix, axis=1)
    others = [n for n, text in enumerate(texts) if sorted(text) != sorted(texts[one]) and matrix[n] @ matrix[one] > 0]
    return sorted(others, key=lambda n: -matrix[n] @ matrix[one] / (lengths[n] * lengths[one]))


def test_they_are_those_of_a_plain_comparison():
    rng = np.random.default_rng(0)
    words = [f"w{n}" for n in range(30)]
    texts = [["the", *rng.choice(words, rng.integers(2, 9)).tolist()] for _ in range(40)]
    made = most_alike(texts, number=40)
    for one, others in enumerate(made):
        assert others == compared(texts, one)
    assert most_alike(texts, number=3) == [others[:3] for others in made]


def test_what_says_the_same_or_shares_nothing_is_not_alike():
    texts = said("a red circle", "a red square", "circle a red", "a dog runs", "a")
    assert most_alike(texts, number=9) == [[1], [0, 2], [1], [], []]


def test_words_that_come_too_often_are_not_looked_at():
    texts = said("photo red circle", "photo blue square", "red dog", "photo red box", "grey cat")
    assert most_alike(texts, number=9)[2] == [0, 3]
    assert most_alike(texts, number=9, common=2) == [[], [], [], [], []]


@pytest.mark.parametrize("texts", [[], said(""), said("one text")])
def test_of_one_text_or_none_nothing_is_alike(texts):
    assert most_alike(texts, number=2) == [[] for _ in texts]
