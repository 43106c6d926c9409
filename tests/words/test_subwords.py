"""Subwords: the buckets of fastText, and updates that match the formula."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from megaptm.families.word_vectors.compiled import kernels
from megaptm.families.word_vectors.subwords import subword_buckets, subword_rows
from megaptm.families.word_vectors.vocabulary import alias_table
from tests import ROOT

GOLDEN = np.load(ROOT / "tests/golden/fasttext.npz")
WORD_RECORDS = json.loads(str(GOLDEN["words_json"]))
EMPTY, FULL_TABLE = np.zeros(0, np.int64), np.zeros(0, np.int32)


@pytest.mark.parametrize(
    ("name", "ngrams", "buckets"), [("2000000_3_6", (3, 6), 2_000_000), ("1000_2_4", (2, 4), 1000)]
)
def test_subword_buckets_match_fasttext(name, ngrams, buckets):
    """The released code has no result for the empty word."""
    records = [record for record in WORD_RECORDS if record["word"]]
    starts, rows = subword_buckets([record["word"] for record in records], ngrams, buckets)
    assert len(records) == 28
    for record, first, last in zip(records, starts, starts[1:], strict=False):
        assert rows[first:last].tolist() == record[name]["buckets"], record["word"]


def test_subword_rows_match_a_fasttext_model():
    words = [str(word) for word in GOLDEN["tiny.words"]]
    starts, rows = subword_rows(words, (2, 3), 50)
    matrix = GOLDEN["tiny.input_matrix"]
    for word in ("w00", "w05", "</s>"):
        word_rows = rows[starts[words.index(word)] : starts[words.index(word) + 1]]
        assert word_rows.tolist() == GOLDEN[f"tiny.ids.{word}"].tolist()
        assert matrix[word_rows].mean(axis=0) == pytest.approx(GOLDEN[f"tiny.vector.{word}"], rel=1e-5)
    for word in ("w99", "日本"):
        _, buckets = subword_buckets([word], (2, 3), 50)
        assert matrix[buckets + len(words)].mean(axis=0) == pytest.approx(GOLDEN[f"tiny.vector.{word}"], rel=1e-5)


@pytest.mark.parametrize("cbow", [False, True])
def test_all_rows_of_a_word_get_the_full_update(cbow):
    """The released code does not divide the update by the number of rows."""
    words = ["ab", "abc", "zz"]
    starts, pieces = subword_rows(words, (2, 3), 7)
    rng = np.random.default_rng(2)
    inputs, outputs = (rng.normal(0, 0.4, (rows, 5)).astype(np.float32) for rows in (10, 3))
    before = [torch.from_numpy(table.copy()).double() for table in (inputs, outputs)]
    noise = alias_table(np.array([0.0, 0.0, 1.0]))
    no_tree = (np.zeros((1, 0), np.int64), np.zeros((1, 0), np.float32))
    task = kernels.WindowTask(cbow, 1, False, 1, *noise, *no_tree, EMPTY, starts, pieces)
    text, documents = np.array([0, 1]), np.ones(2, np.int64)
    kernels.train_words(
        *(task, inputs, outputs, text, documents, np.uint64(1), 0.05, *kernels.sigmoid_tables(), True),
        *(FULL_TABLE, FULL_TABLE),
    )
    expected = [table.clone() for table in before]
    for middle, other in ((0, 1), (1, 0)):
        source, target = (other, middle) if cbow else (middle, other)
        rows = torch.from_numpy(pieces[starts[source] : starts[source + 1]])
        hidden, error = expected[0][rows].mean(0), torch.zeros(5, dtype=torch.float64)
        for row, label in ((target, 1.0), (2, 0.0)):
            update = (label - torch.sigmoid(hidden @ expected[1][row])) * 0.05
            error += update * expected[1][row]
            expected[1][row] += update * hidden
        for row in rows:  # a subword may occur twice
            expected[0][row] += error
    assert np.abs(inputs - expected[0].numpy()).max() < 1e-6
    assert np.abs(outputs - expected[1].numpy()).max() < 1e-6
    assert np.abs(inputs - before[0].numpy()).max() > 1e-3
