"""Pairs of texts shortened to a total length, and the heads of questions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaptm.models.head_costs import HEADS, RowClassHeadCosts
from megaptm.objectives.text_questions import QUESTIONS, question_field, take_sentences, truncate_pair


def token_by_token(first: int, second: int, length: int) -> tuple[int, int]:
    """Return the lengths after the loop of BERT's released code.

    The longer text loses a token, the second one when they are equal.
    """
    while first + second > length:
        if first > second:
            first -= 1
        else:
            second -= 1
    return first, second


@given(st.integers(1, 60), st.integers(1, 60), st.integers(2, 80), st.integers(0, 99))
def test_truncation_equals_the_loop_of_bert(first, second, length, seed):
    pair = truncate_pair(np.arange(first), np.arange(second), 1, np.random.default_rng(seed), length).texts
    assert tuple(map(len, pair)) == token_by_token(first, second, length)
    # Tokens are removed from the two ends only.
    assert all((np.diff(text) == 1).all() for text in pair)


def test_tokens_are_removed_from_both_ends_alike():
    rng = np.random.default_rng(0)
    fronts = [int(truncate_pair(np.arange(60), np.arange(2), 1, rng, 42).texts[0][0]) for _ in range(2000)]
    assert np.mean(fronts) == pytest.approx(10, abs=0.2)  # 20 of 60 are removed, half of them from the front
    assert np.var(fronts) == pytest.approx(5, abs=0.6)  # binomial(20, 1/2)


def test_take_sentences_until_enough_tokens():
    sentences = [np.zeros(4)] * 5
    counts = [len(take_sentences(sentences, min_tokens)) for min_tokens in (-3, 0, 4, 5, 100)]
    assert counts == [1, 1, 1, 2, 5]


def test_each_question_has_a_head():
    text_heads = {name for name, head in HEADS.items() if issubclass(head, RowClassHeadCosts)} - {"itm"}  # reads images
    assert text_heads == set(QUESTIONS)
    for name, question in QUESTIONS.items():
        assert (question_field(name), question.num_classes) == (HEADS[name].label_field, HEADS[name].classes), name
        assert len(question.label_meanings) in (0, question.num_classes), name
