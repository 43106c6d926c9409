"""Each family learns from real text, and learns the order of words: its loss is low where order is, and only there."""

import math

import pytest

from tests.learn.lessons import learn
from tests.ranks import run_ranks

KINDS = {"gpt2": "byte-bpe", "bert": "wordpiece", "t5": "unigram"}
CLEARLY = 0.1
"""Nats for each answer, on thousands of them: chance moves the mean by a fifth of this."""


@pytest.fixture(
    scope="module",
    params=["gpt2", *(pytest.param(family, marks=pytest.mark.drill) for family in KINDS if family != "gpt2")],
)
def lesson(request, real_corpus):
    """What a model learned from real text, in a world of one process."""
    (lesson,) = run_ranks(1, learn, request.param, str(real_corpus(KINDS[request.param])))
    return lesson


def main_loss(losses):
    """Of what is asked about words."""
    return losses.get("lm", losses.get("mlm"))


def test_the_loss_goes_below_the_unigram_entropy_of_held_out_text(lesson):
    assert main_loss(lesson.before) > lesson.unigram
    assert main_loss(lesson.after) < lesson.unigram - CLEARLY


def test_order_is_worth_something(lesson):
    assert main_loss(lesson.after) < main_loss(lesson.in_disorder) - CLEARLY


def test_each_loss_goes_down_by_itself_and_below_chance(lesson):
    chance = {"next-sentence": math.log(2)}
    for name, before in lesson.before.items():
        assert lesson.after[name] < min(before, chance.get(name, before)) - CLEARLY, name
