"""Cutting two texts to a length together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaptm.bricks.heads import HEADS, RowClassHeadBrick
from megaptm.objectives.text_questions import QUESTIONS, question_field, take_sentences, truncate_pair


def token_by_token(first: int, second: int, length: int) -> tuple[int, int]:
    """Lengths after the loop of BERT's paper code: the longer text loses a token, the second when they are equal."""
    while first + second > length:
        if first > second:
            first -= 1
        else:
            second -= 1
    return first, second


@given(st.integers(1, 60), st.integers(1, 60), st.integers(2, 80), st.integers(0, 99))
def test_truncation_equals_taking_one_token_at_a_time(first, second, length, seed):
    one, other = truncate_pair(np.arange(first), np.arange(second), 1, np.random.default_rng(seed), length).texts
    assert (len(one), len(other)) == token_by_token(first, second, length)
    # What remains is one stretch: tokens went from the two ends.
    assert (np.diff(one) == 1).all()
    assert (np.diff(other) == 1).all()


def test_tokens_go_from_both_ends_alike():
    rng = np.random.default_rng(0)
    fronts = [int(truncate_pair(np.arange(60), np.arange(2), 1, rng, 42).texts[0][0]) for _ in range(2000)]
    assert np.mean(fronts) == pytest.approx(10, abs=0.2)  # 20 of 60 go, half of them from the front
    assert np.var(fronts) == pytest.approx(5, abs=0.6)  # binomial(20, 1/2)


def test_sentences_are_taken_until_there_are_enough_tokens():
    sentences = [np.zeros(4)] * 5
    assert [len(take_sentences(sentences, wanted)) for wanted in (-3, 0, 4, 5, 100)] == [1, 1, 1, 2, 5]


def test_a_question_and_the_head_of_its_name_agree():
    of_texts = {name for name, head in HEADS.items() if issubclass(head, RowClassHeadBrick)} - {"itm"}  # of an image
    assert of_texts == set(QUESTIONS)
    for name, question in QUESTIONS.items():
        assert (question_field(name), question.num_classes) == (HEADS[name].answers, HEADS[name].classes), name
        assert len(question.label_meanings) in (0, question.num_classes), name
