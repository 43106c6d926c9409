"""Baselines computed from a corpus."""

import math

import numpy as np
import pytest

from megaptm.data.shards import Corpus
from megaptm.data.statistics import bits_per_byte, bytes_per_token, unigram_loss
from tests.data.corpora import tiny_corpus


@pytest.fixture
def corpus(tmp_path):
    tiny_corpus(tmp_path, documents=1100, lengths=(1, 5))
    return Corpus.open(tmp_path)


def test_unigram_loss_is_the_entropy_of_the_text_itself():
    assert unigram_loss(np.array([4, 4, 0, 4, 4])) == pytest.approx(math.log(4))


def test_unigram_loss_of_another_text_survives_ids_it_never_saw():
    loss = unigram_loss(np.array([1, 1]), model=np.array([0, 2]))
    assert loss == pytest.approx(-(math.log(1 / 4) + math.log(3 / 4)) / 2)


def test_bits_per_byte_follow_from_the_manifest(corpus):
    split = corpus.split("train")
    assert split.bytes == 4 * split.tokens
    assert bytes_per_token(corpus, "train") == split.bytes / (split.tokens + split.samples)
    assert bits_per_byte(math.log(2) * 8, 4) == pytest.approx(2)
