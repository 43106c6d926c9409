"""Baselines computed from a corpus."""

import math

import numpy as np
import pytest

from megaptm.data.shards import Corpus
from megaptm.data.statistics import bits_per_byte, bytes_per_token, count_tokens, unigram_loss
from megaptm.errors import UserError
from tests.data.corpora import tiny_corpus


@pytest.fixture
def corpus(tmp_path):
    tiny_corpus(tmp_path, documents=1100, lengths=(1, 5))
    return Corpus.open(tmp_path)


def test_unigram_loss_is_entropy():
    assert unigram_loss(np.array([4, 4, 0, 4, 4])) == pytest.approx(math.log(4))


def test_unigram_loss_of_unseen_ids_is_finite():
    loss = unigram_loss(np.array([1, 1]), model=np.array([0, 2]))
    assert loss == pytest.approx(-(math.log(1 / 4) + math.log(3 / 4)) / 2)


def test_bits_per_byte(corpus):
    split = corpus.split("train")
    assert split.bytes == 4 * split.tokens
    assert bytes_per_token(corpus, "train") == split.bytes / (split.tokens + split.samples)
    assert bits_per_byte(math.log(2) * 8, 4) == pytest.approx(2)


@pytest.mark.parametrize(
    ("verify", "written", "message"),
    [("hash", b"\0\0", "its sha256 differs from the manifest"), ("size", b"\xff\xff", "has token id 65,535, but")],
)
def test_damaged_shard_is_not_counted(corpus, verify, written, message):
    """Counts are tables indexed by id, so an invalid id would end in a traceback."""
    info = corpus.split("train").shards[0]
    at = int(corpus.open_shard(info).index[0, 0])
    with (corpus.folder / info.name).open("r+b") as file:
        file.seek(at)
        file.write(written)
    with pytest.raises(UserError, match=f"{info.name} .*{message}"):
        count_tokens(corpus, "train", 1000, verify=verify)
