"""Each family learns from real text, and uses the order of words: shuffled text has a higher loss."""

import math

import pytest

from tests.learn.lessons import train_and_evaluate
from tests.ranks import run_ranks

KINDS = {"gpt2": "byte-bpe", "bert": "wordpiece", "t5": "unigram"}
MARGIN = 0.1
"""Nats per label: five times the standard deviation of the mean over thousands of labels."""


@pytest.fixture(
    scope="module",
    params=["gpt2", *(pytest.param(family, marks=pytest.mark.drill) for family in KINDS if family != "gpt2")],
)
def lesson(request, real_corpus):
    """Losses of a model trained on real text by one rank."""
    (lesson,) = run_ranks(1, train_and_evaluate, request.param, str(real_corpus(KINDS[request.param])))
    return lesson


def main_loss(losses):
    """Return the loss of words."""
    return losses.get("lm", losses.get("mlm"))


def test_loss_falls_below_unigram_entropy(lesson):
    assert main_loss(lesson.before) > lesson.unigram
    assert main_loss(lesson.after) < lesson.unigram - MARGIN


def test_loss_of_shuffled_text_is_higher(lesson):
    assert main_loss(lesson.after) < main_loss(lesson.shuffled) - MARGIN


def test_each_loss_falls_below_chance(lesson):
    chance = {"next-sentence": math.log(2)}
    for name, before in lesson.before.items():
        assert lesson.after[name] < min(before, chance.get(name, before)) - MARGIN, name
