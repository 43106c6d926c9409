"""Compiled updates match gensim and autograd, and noise and windows have the expected distributions."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import torch

from megaptm.checkpoint.tensors import TensorPiece, TensorReader, write_pieces
from megaptm.errors import UserError
from megaptm.families.word_vectors.compiled import kernels
from megaptm.families.word_vectors.compiled.decorator import compiled
from megaptm.families.word_vectors.vocabulary import (
    COUNTS,
    alias_table,
    huffman_code,
    read_counts,
    subsampling_thresholds,
    word_tables,
)
from megaptm.families.word_vectors.windows import SkipGram
from tests import ROOT

GOLDEN = np.load(ROOT / "tests/golden/word2vec.npz")
SETTINGS = json.loads(str(GOLDEN["meta_json"]))["exact"]
NO_TREE = (np.zeros((1, 0), np.int64), np.zeros((1, 0), np.float32))
EMPTY, FULL_TABLE = np.zeros(0, np.int64), np.zeros(0, np.int32)


def train_text(
    text,
    inputs,
    outputs,
    *,
    cbow,
    window,
    tree=None,
    noise=None,
    softmax_words=EMPTY,
    negatives=0,
    exact=False,
    rate=0.05,
    seed=1,
    subwords=(EMPTY, EMPTY),
):
    """Train once over a text, with windows of full width; return the loss and the number of predictions."""
    accept, alias = alias_table(np.zeros(0) if noise is None else noise)
    points, codes = tree or NO_TREE
    task = kernels.WindowTask(cbow, window, False, negatives, accept, alias, points, codes, softmax_words, *subwords)
    return train_task(task, inputs, outputs, text, np.ones(len(text), np.int64), rate=rate, exact=exact, state=seed)


def train_task(task, inputs, outputs, text, documents, *, rate, exact=False, state=1):
    return kernels.train_words(
        *(task, inputs, outputs, text, documents, np.uint64(state), rate, *kernels.sigmoid_tables(), exact),
        *(FULL_TABLE, FULL_TABLE),
    )


def test_huffman_tree_matches_gensim():
    points, codes = huffman_code(GOLDEN["counts"])
    assert (points == GOLDEN["huffman_points"]).all()
    assert (np.where(points < 0, -1, codes) == GOLDEN["huffman_codes"]).all()


@pytest.mark.parametrize("name", ["exact_sg_hs", "exact_cbow_hs"])
def test_updates_of_a_sentence_match_gensim(name):
    words = [*GOLDEN["vocabulary"]]
    text = np.array([words.index(word) for word in SETTINGS["sentence"]])
    inputs, outputs = (np.ascontiguousarray(GOLDEN[f"{name}.{side}_before"]) for side in ("in", "out"))
    train_text(
        text,
        inputs,
        outputs,
        cbow="cbow" in name,
        window=SETTINGS["window"],
        tree=huffman_code(GOLDEN["counts"]),
        rate=SETTINGS["alpha"],
    )
    assert np.abs(inputs - GOLDEN[f"{name}.in_before"]).max() > 1e-3
    assert np.abs(inputs - GOLDEN[f"{name}.in_after"]).max() < 1e-6
    assert np.abs(outputs - GOLDEN[f"{name}.out_after"]).max() < 1e-6


@pytest.mark.parametrize("cbow", [False, True])
@pytest.mark.parametrize("output", ["tree", "noise"])
def test_binary_update_matches_autograd(cbow, output):
    """Each of two words predicts the other; both negative samples are word 3."""
    rng = np.random.default_rng(5)
    inputs, outputs = (rng.normal(0, 0.4, (4, 6)).astype(np.float32) for _ in range(2))
    counts = np.array([5, 4, 3, 2])
    noise, tree = (np.array([0.0, 0.0, 0.0, 1.0]), None) if output == "noise" else (None, huffman_code(counts))
    text = np.array([0, 1])
    before = [table.copy() for table in (inputs, outputs)]
    rate, expected = 0.05, [torch.from_numpy(table).double() for table in before]
    total = 0.0
    for middle, other in ((0, 1), (1, 0)):
        hidden = expected[0][other].clone()
        if output == "noise":
            labels = [(middle, 1.0), (3, 0.0), (3, 0.0)]
        else:
            points, codes = tree
            labels = [(int(p), 1.0 - float(c)) for p, c in zip(points[middle], codes[middle], strict=True) if p >= 0]
        # Each prediction updates its row before the next one reads it.
        error = torch.zeros_like(hidden)
        for row, label in labels:
            loss_hidden = hidden.clone().requires_grad_()
            loss_row = expected[1][row].clone().requires_grad_()
            loss = -torch.nn.functional.logsigmoid((1 if label else -1) * (loss_hidden @ loss_row))
            loss.backward()
            total += loss.item()
            error -= rate * loss_hidden.grad
            expected[1][row] -= rate * loss_row.grad
        expected[0][other] += error
    loss, predictions = train_text(
        text,
        inputs,
        outputs,
        cbow=cbow,
        window=1,
        tree=tree,
        noise=noise,
        negatives=0 if noise is None else 2,
        exact=True,
    )
    assert predictions == 2
    assert loss == pytest.approx(total, rel=1e-6)
    for table, expected_table, initial in zip((inputs, outputs), expected, before, strict=True):
        assert np.abs(table - expected_table.numpy()).max() < 1e-6
        assert np.abs(table - initial).max() > 1e-3


@pytest.mark.parametrize("cbow", [False, True])
def test_softmax_update_matches_autograd(cbow):
    """Each of two words predicts the other among four words; row 4 is not among them."""
    rng = np.random.default_rng(5)
    inputs, outputs = (rng.normal(0, 0.4, (5, 6)).astype(np.float32) for _ in range(2))
    expected, total = [torch.from_numpy(table.copy()).double() for table in (inputs, outputs)], 0.0
    for middle, other in ((0, 1), (1, 0)):
        both = [table.clone().requires_grad_() for table in expected]
        loss = torch.nn.functional.cross_entropy(both[1][:4] @ both[0][other], torch.tensor(middle))
        loss.backward()
        total += loss.item()
        expected = [table.detach() - 0.05 * table.grad for table in both]
    loss, predictions = train_text(np.array([0, 1]), inputs, outputs, cbow=cbow, window=1, softmax_words=np.arange(4))
    assert predictions == 2
    assert loss == pytest.approx(total, rel=1e-6)
    assert np.abs(inputs - expected[0].numpy()).max() < 1e-6
    assert np.abs(outputs - expected[1].numpy()).max() < 1e-6


@pytest.mark.parametrize("power", [0.75, 0.3])
def test_noise_follows_the_power_of_counts(power):
    counts = np.array([500, 900, 250, 80, 40, 11, 6, 4])
    tables = word_tables(counts, special=[0], task=SkipGram(noise_power=power))
    sampled = count_samples(tables.accept, tables.alias, 400_000)
    assert not sampled[[0, 7]].any(), "the special token and the word below min_count are never sampled"
    weights = counts[1:7] ** power
    expected = weights / weights.sum() * sampled.sum()
    chi_square = ((sampled[1:7] - expected) ** 2 / expected).sum()
    assert chi_square < 20.5  # with 5 degrees of freedom, one in a thousand is larger


def test_window_widths_are_uniform():
    documents, state, widths = np.ones(11, np.int64), np.uint64(3), np.zeros(6, np.int64)
    for _ in range(10_000):
        first, last, state = kernels._sample_window(documents, 5, 5, True, np.uint64(state))
        assert (5 - first) == (last - 6)
        widths[5 - first] += 1
    assert widths[0] == 0
    assert ((widths[1:] - 2000) ** 2 / 2000).sum() < 18.5  # with 4 degrees of freedom, one in a thousand is larger
    assert kernels._sample_window(documents, 5, 5, False, np.uint64(3))[:2] == (0, 11)


def count_samples(accept, alias, number):
    """Return how often each word is sampled as noise for another word."""
    counts, state = np.zeros(len(accept), np.int64), np.uint64(3)
    rows, labels = np.zeros(101, np.int64), np.zeros(101, np.float32)
    for _ in range(number // 100):
        n, state = kernels._sample_noise(99, 100, accept, alias, rows, labels, np.uint64(state))
        counts += np.bincount(rows[1:n], minlength=len(accept))
    return counts


def test_sigmoid_table_matches_word2vec():
    sigmoid, log_sigmoid = kernels.sigmoid_tables()
    assert len(sigmoid) == 1000
    assert kernels.TABLE_SCALE == 83
    assert sigmoid[500] == 0.5
    assert np.exp(log_sigmoid) == pytest.approx(sigmoid, rel=1e-6)


def test_subsampling_matches_word2vec():
    counts = np.array([0, 100_000, 10_000, 10])
    probabilities = subsampling_thresholds(counts, 1e-3) / 2**32
    ratios = 1e-3 / (counts[1:3] / counts.sum())
    assert probabilities[1:3] == pytest.approx(np.minimum(1.0, np.sqrt(ratios) + ratios), rel=1e-6)
    assert probabilities[0] == 0
    assert probabilities[3] == 1
    text = np.full(20_000, 1)
    words, documents = np.empty_like(text), np.empty_like(text)
    count, _ = kernels.subsample(text, np.ones_like(text), subsampling_thresholds(counts, 1e-3), 9, words, documents)
    assert count / len(text) == pytest.approx(probabilities[1], abs=0.005)


def test_windows_stay_within_documents():
    inputs, outputs = np.full((4, 2), 0.5, np.float32), np.full((4, 2), 0.5, np.float32)
    tree = huffman_code(np.array([4, 3, 2, 1]))
    task = kernels.WindowTask(False, 3, False, 0, *alias_table(np.zeros(0)), *tree, EMPTY, EMPTY, EMPTY)
    text, documents = np.array([0, 1, 2, 3]), np.array([1, 1, 2, 2])
    _, predictions = train_task(task, inputs, outputs, text, documents, rate=0.1)
    assert predictions == 4


@pytest.mark.parametrize("cbow", [False, True])
def test_count_updates_matches_training(cbow):
    rng = np.random.default_rng(1)
    text, noise, documents = rng.integers(0, 50, 40), np.arange(1.0, 301.0), np.repeat([1, 2], 20)
    task = kernels.WindowTask(cbow, 4, True, 5, *alias_table(noise), *NO_TREE, EMPTY, EMPTY, EMPTY)
    counts = np.zeros((2, 300), np.int64)
    kernels.count_updates(task, text, documents, np.uint64(8), *counts)
    tables = rng.normal(0, 0.2, (2, 300, 8)).astype(np.float32)
    before = tables.copy()
    train_task(task, *tables, text, documents, rate=0.1, state=8)
    assert ((tables != before).any(axis=2) == (counts > 0)).all()


@pytest.mark.parametrize("counts", [[3, 4], [3, -4, 5], [3.0, 4.0, 5.0]])
def test_invalid_counts_are_rejected(counts, tmp_path):
    tensor = torch.tensor(counts)
    shape = tuple(tensor.shape)
    record = write_pieces(tmp_path / "rank.safetensors", [TensorPiece(COUNTS, shape, (0,), shape, tensor)])
    with pytest.raises(UserError, match="counts must hold 3 word counts, integers from 0: use another checkpoint"):
        read_counts(TensorReader(tmp_path, [record]), 3)


def double(number):
    return 2 * number


def test_functions_compile_without_a_cache_folder(monkeypatch):
    """A container may have a read-only home and read-only packages."""
    monkeypatch.setattr("numba.core.caching.CompileResultCacheImpl._locator_classes", [])
    assert compiled()(double)(21) == 42


def test_truncated_compilation_cache_is_rebuilt(monkeypatch, tmp_path):
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(tmp_path))
    assert compiled()(double)(21) == 42
    for suffix, size in ((".nbc", 9), (".nbi", 9), (".nbi", 0)):
        [path] = tmp_path.rglob(f"*{suffix}")
        size_before = path.stat().st_size
        os.truncate(path, size)
        assert compiled()(double)(21) == 42
        assert path.stat().st_size == size_before
