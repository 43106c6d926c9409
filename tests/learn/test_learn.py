"""Each family learns from real text, and learns the order of words: its loss falls where order is, and only there."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tests.learn.lessons import Lesson, learn
from tests.ranks import run_ranks

KINDS = {"gpt2": "byte-bpe", "bert": "wordpiece", "t5": "unigram"}
CLEARLY = 0.1
"""Nats for each answer, on thousands of them: chance moves the mean by a fifth of this."""


@dataclass(frozen=True)
class Lessons:
    family: str
    real: Lesson
    shuffled: Lesson


@pytest.fixture(scope="module", params=KINDS)
def lessons(request, real_corpus):
    """A model learns from the text while its twin learns from the disorder, each in a world of one process."""
    family, corpus = request.param, str(real_corpus(KINDS[request.param]))
    with ThreadPoolExecutor(2) as both:
        twins = [both.submit(run_ranks, 1, learn, family, corpus, shuffled) for shuffled in (False, True)]
        (real,), (shuffled,) = (twin.result() for twin in twins)
    return Lessons(family, real, shuffled)


def main_loss(losses):
    """Of what is asked about words."""
    return losses.get("lm", losses.get("mlm"))


def test_the_loss_goes_below_the_unigram_entropy_of_held_out_text(lessons):
    assert main_loss(lessons.real.before) > lessons.real.unigram
    assert main_loss(lessons.real.after) < lessons.real.unigram - CLEARLY


def test_order_is_worth_something(lessons):
    assert main_loss(lessons.real.after) < main_loss(lessons.shuffled.after) - CLEARLY


def test_each_loss_goes_down_by_itself_and_below_chance(lessons):
    chance = {"next-sentence": math.log(2)}
    for name, before in lessons.real.before.items():
        assert lessons.real.after[name] < min(before, chance.get(name, before)) - CLEARLY, name
