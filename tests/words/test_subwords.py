"""Pieces of words: the buckets of the released code, and updates that are those of the closed form."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from megaptm.words import kernels
from megaptm.words.subwords import bags_of, pieces_of
from megaptm.words.vocabulary import alias_table
from tests import ROOT

GOLDEN = np.load(ROOT / "tests/golden/fasttext.npz")
ROWS = json.loads(str(GOLDEN["words_json"]))
NONE, NOWHERE = np.zeros(0, np.int64), np.zeros(0, np.int32)


@pytest.mark.parametrize(
    ("name", "ngrams", "buckets"), [("2000000_3_6", (3, 6), 2_000_000), ("1000_2_4", (2, 4), 1000)]
)
def test_buckets_are_those_of_the_released_code(name, ngrams, buckets):
    words = [row["word"] for row in ROWS]
    starts, found = pieces_of(words, ngrams, buckets)
    assert len(words) == 29
    for row, first, last in zip(ROWS, starts, starts[1:], strict=False):
        if row["word"]:  # the released code has no answer for the empty word
            assert found[first:last].tolist() == row[name]["buckets"], row["word"]


def test_rows_of_words_are_those_of_a_small_model():
    words = [str(word) for word in GOLDEN["tiny.words"]]
    starts, rows = bags_of(words, (2, 3), 50)
    matrix = GOLDEN["tiny.input_matrix"]
    for word in ("w00", "w05", "</s>"):
        own = rows[starts[words.index(word)] : starts[words.index(word) + 1]]
        assert own.tolist() == GOLDEN[f"tiny.ids.{word}"].tolist()
        assert matrix[own].mean(axis=0) == pytest.approx(GOLDEN[f"tiny.vector.{word}"], rel=1e-5)
    for word in ("w99", "日本"):
        _, own = pieces_of([word], (2, 3), 50)
        assert matrix[own + len(words)].mean(axis=0) == pytest.approx(GOLDEN[f"tiny.vector.{word}"], rel=1e-5)


@pytest.mark.parametrize("cbow", [False, True])
def test_every_row_of_a_word_moves_by_the_gradient_of_their_mean_times_their_number(cbow):
    """As in the released code, which does not divide what it adds to each by how many they are."""
    words = ["ab", "abc", "zz"]
    starts, pieces = bags_of(words, (2, 3), 7)
    rng = np.random.default_rng(2)
    inputs, outputs = (rng.normal(0, 0.4, (rows, 5)).astype(np.float32) for rows in (10, 3))
    before = [torch.from_numpy(table.copy()).double() for table in (inputs, outputs)]
    noise = alias_table(np.array([0.0, 0.0, 1.0]))
    no_tree = (np.zeros((1, 0), np.int64), np.zeros((1, 0), np.float32))
    drawn = (1, False, 1, *noise, *no_tree, NONE, starts, pieces, kernels.NOTHING)
    text, borders = np.array([0, 1]), np.ones(2, np.int64)
    kernels.learn(
        *(cbow, inputs, outputs, text, borders, np.uint64(1), *drawn, 0.05, *kernels.tables(), True, NOWHERE, NOWHERE)
    )
    moved = [table.clone() for table in before]
    for middle, other in ((0, 1), (1, 0)):
        said, answer = (other, middle) if cbow else (middle, other)
        rows = torch.from_numpy(pieces[starts[said] : starts[said + 1]])
        hidden, error = moved[0][rows].mean(0), torch.zeros(5, dtype=torch.float64)
        for row, label in ((answer, 1.0), (2, 0.0)):
            move = (label - torch.sigmoid(hidden @ moved[1][row])) * 0.05
            error += move * moved[1][row]
            moved[1][row] += move * hidden
        for row in rows:  # a piece may come twice
            moved[0][row] += error
    for table, wanted in zip((inputs, outputs), moved, strict=True):
        assert np.abs(table - wanted.numpy()).max() < 1e-6
    assert np.abs(inputs - before[0].numpy()).max() > 1e-3
