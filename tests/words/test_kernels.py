"""The compiled updates: those of gensim, those of the closed form, and noise that is drawn as it should be."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import torch

from megaptm.checkpoint.tensors import TensorPiece, TensorReader, write_pieces
from megaptm.errors import UserError
from megaptm.objectives.windows import SkipGram
from megaptm.words import kernels
from megaptm.words.compiled import compiled
from megaptm.words.vocabulary import COUNTS, alias_table, huffman, read_counts, thresholds, word_tables
from tests import ROOT

GOLDEN = np.load(ROOT / "tests/golden/word2vec.npz")
SETTINGS = json.loads(str(GOLDEN["meta_json"]))["exact"]
NONE, NOWHERE = np.zeros(0, np.int64), np.zeros(0, np.int32)


def learn(
    text,
    inputs,
    outputs,
    *,
    cbow,
    window,
    tree=None,
    noise=None,
    words=NONE,
    negatives=0,
    exact=False,
    rate=0.05,
    seed=1,
    bags=(NONE, NONE),
    positions=kernels.NOTHING,
):
    """One pass over a text, with whole windows; loss and number of answers."""
    accept, alias = alias_table(np.zeros(0) if noise is None else noise)
    points, codes = tree or (np.zeros((1, 0), np.int64), np.zeros((1, 0), np.float32))
    drawn = (window, False, negatives, accept, alias, points, codes, words, *bags, positions)
    borders, state = np.ones(len(text), np.int64), np.uint64(seed)
    return kernels.learn(
        *(cbow, inputs, outputs, text, borders, state, *drawn, rate, *kernels.tables(), exact, NOWHERE, NOWHERE)
    )


def test_the_tree_is_gensims():
    points, codes = huffman(GOLDEN["counts"])
    assert (points == GOLDEN["huffman_points"]).all()
    assert (np.where(points < 0, -1, codes) == GOLDEN["huffman_codes"]).all()


@pytest.mark.parametrize("name", ["exact_sg_hs", "exact_cbow_hs"])
def test_a_sentence_moves_the_tables_as_gensim_moves_them(name):
    words = [*GOLDEN["vocabulary"]]
    text = np.array([words.index(word) for word in SETTINGS["sentence"]])
    inputs, outputs = (np.ascontiguousarray(GOLDEN[f"{name}.{side}_before"]) for side in ("in", "out"))
    learn(
        text,
        inputs,
        outputs,
        cbow="cbow" in name,
        window=SETTINGS["window"],
        tree=huffman(GOLDEN["counts"]),
        rate=SETTINGS["alpha"],
    )
    assert np.abs(inputs - GOLDEN[f"{name}.in_before"]).max() > 1e-3
    assert np.abs(inputs - GOLDEN[f"{name}.in_after"]).max() < 1e-6
    assert np.abs(outputs - GOLDEN[f"{name}.out_after"]).max() < 1e-6


@pytest.mark.parametrize("cbow", [False, True])
@pytest.mark.parametrize("output", ["tree", "noise"])
def test_an_update_is_the_gradient_of_the_closed_form(cbow, output):
    """Two words, one of which says the other; of noise each of one other word."""
    rng = np.random.default_rng(5)
    inputs, outputs = (rng.normal(0, 0.4, (4, 6)).astype(np.float32) for _ in range(2))
    counts = np.array([5, 4, 3, 2])
    noise, tree = (np.array([0.0, 0.0, 0.0, 1.0]), None) if output == "noise" else (None, huffman(counts))
    # At the first place word 0 stands, at the second word 1: windows of each other, learned one after the other.
    text = np.array([0, 1])
    before = [table.copy() for table in (inputs, outputs)]
    rate, moved = 0.05, [torch.from_numpy(table).double() for table in before]
    total = 0.0
    for middle, other in ((0, 1), (1, 0)):
        hidden = moved[0][other].clone()
        if output == "noise":
            asked = [(middle, 1.0), (3, 0.0), (3, 0.0)]
        else:
            points, codes = tree
            asked = [(int(p), 1.0 - float(c)) for p, c in zip(points[middle], codes[middle], strict=True) if p >= 0]
        # One after the other: each answer moves its row before the next is asked.
        error = torch.zeros_like(hidden)
        for row, label in asked:
            loss_hidden = hidden.clone().requires_grad_()
            loss_row = moved[1][row].clone().requires_grad_()
            loss = -torch.nn.functional.logsigmoid((1 if label else -1) * (loss_hidden @ loss_row))
            loss.backward()
            total += loss.item()
            error -= rate * loss_hidden.grad
            moved[1][row] -= rate * loss_row.grad
        moved[0][other] += error
    loss, answers = learn(
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
    assert answers == 2
    assert loss == pytest.approx(total, rel=1e-6)
    for table, wanted, begun in zip((inputs, outputs), moved, before, strict=True):
        assert np.abs(table - wanted.numpy()).max() < 1e-6
        assert np.abs(table - begun).max() > 1e-3


@pytest.mark.parametrize("cbow", [False, True])
def test_an_update_of_the_softmax_is_the_gradient_of_the_closed_form(cbow):
    """Two words, one of which says the other, told from two more; row 4 takes no part."""
    rng = np.random.default_rng(5)
    inputs, outputs = (rng.normal(0, 0.4, (5, 6)).astype(np.float32) for _ in range(2))
    moved, total = [torch.from_numpy(table.copy()).double() for table in (inputs, outputs)], 0.0
    for middle, other in ((0, 1), (1, 0)):
        both = [table.clone().requires_grad_() for table in moved]
        loss = torch.nn.functional.cross_entropy(both[1][:4] @ both[0][other], torch.tensor(middle))
        loss.backward()
        total += loss.item()
        moved = [table.detach() - 0.05 * table.grad for table in both]
    loss, answers = learn(np.array([0, 1]), inputs, outputs, cbow=cbow, window=1, words=np.arange(4))
    assert answers == 2
    assert loss == pytest.approx(total, rel=1e-6)
    for table, wanted in zip((inputs, outputs), moved, strict=True):
        assert np.abs(table - wanted.numpy()).max() < 1e-6


@pytest.mark.parametrize("pieces", [False, True])
def test_an_update_with_weights_of_places_is_the_gradient_of_the_closed_form(pieces):
    """Three words, the middle one of which is asked about; rows 4 to 7 are of pieces, 8 to 11 of the four places.

    Word vectors move by the whole error, as in all of CBOW, places by their own.
    """
    rng = np.random.default_rng(5)
    inputs, outputs = (rng.normal(0, 0.4, (rows, 6)).astype(np.float32) for rows in (12, 4))
    rows = {0: [0, 4, 5], 1: [1, 5], 2: [2, 6, 7]} if pieces else {0: [0], 1: [1], 2: [2]}
    bags = NONE, NONE
    if pieces:
        flat = np.concatenate([*rows.values(), [3]])
        bags = np.cumsum([0, *map(len, rows.values()), 1]), flat.astype(np.int64)
    text, total = np.array([0, 1, 2]), 0.0
    moved = [torch.from_numpy(table.copy()).double() for table in (inputs, outputs)]
    for middle in range(3):
        both = [table.clone().requires_grad_() for table in moved]
        around = [
            (8 + (away + 2 if away < 0 else away + 1), rows[other]) for other in range(3) if (away := other - middle)
        ]
        read = sum(len(some) for _, some in around)
        hidden = sum(both[0][place] * both[0][some].sum(0) for place, some in around) / read
        loss = torch.nn.functional.cross_entropy(both[1] @ hidden, torch.tensor(middle))
        loss.backward()
        total += loss.item()
        gradient = both[0].grad
        gradient[:8] *= read
        moved = [moved[0] - 0.05 * gradient, moved[1] - 0.05 * both[1].grad]
    before = inputs.copy()
    loss, answers = learn(text, inputs, outputs, cbow=True, window=2, words=np.arange(4), bags=bags, positions=8)
    assert answers == 3
    assert loss == pytest.approx(total, rel=1e-6)
    for table, wanted in zip((inputs, outputs), moved, strict=True):
        assert np.abs(table - wanted.numpy()).max() < 1e-6
    assert (np.abs(inputs - before).max(1)[8:] > 1e-4).all()


@pytest.mark.parametrize("power", [0.75, 0.3])
def test_noise_is_drawn_by_the_power_of_counts(power):
    counts = np.array([500, 900, 250, 80, 40, 11, 6, 4])
    tables = word_tables(counts, special=[0], task=SkipGram(noise_power=power))
    drawn = draws(tables.accept, tables.alias, 400_000)
    assert not drawn[[0, 7]].any(), "no special token, and none that comes too seldom"
    weights = counts[1:7] ** power
    wanted = weights / weights.sum() * drawn.sum()
    chi = ((drawn[1:7] - wanted) ** 2 / wanted).sum()
    assert chi < 20.5  # of 5 degrees of freedom: one in a thousand is larger


def test_each_width_of_a_window_comes_as_often():
    borders, state, widths = np.ones(11, np.int64), np.uint64(3), np.zeros(6, np.int64)
    for _ in range(10_000):
        first, last, state = kernels._window(borders, 11, 5, 5, True, np.uint64(state))
        assert (5 - first) == (last - 6)
        widths[5 - first] += 1
    assert widths[0] == 0
    assert ((widths[1:] - 2000) ** 2 / 2000).sum() < 18.5  # of 4 degrees of freedom: one in a thousand is larger
    assert kernels._window(borders, 11, 5, 5, False, np.uint64(3))[:2] == (0, 11)


def draws(accept, alias, number):
    """How often each word is drawn as noise for a word that is none of them."""
    counts, state = np.zeros(len(accept), np.int64), np.uint64(3)
    rows, labels = np.zeros(101, np.int64), np.zeros(101, np.float32)
    for _ in range(number // 100):
        n, state = kernels._noise(99, 100, accept, alias, rows, labels, np.uint64(state))
        counts += np.bincount(rows[1:n], minlength=len(accept))
    return counts


def test_the_released_codes_table_is_a_thousandth_off():
    sigmoid, logarithm = kernels.tables()
    assert len(sigmoid) == 1000
    assert kernels.SCALE == 83
    assert sigmoid[500] == 0.5
    assert np.exp(logarithm) == pytest.approx(sigmoid, rel=1e-6)


def test_frequent_words_are_passed_over_as_often_as_the_released_code_does():
    counts = np.array([0, 100_000, 10_000, 10])
    chances = thresholds(counts, 1e-3) / 2**32
    share = counts / counts.sum()
    for word in (1, 2):
        ratio = 1e-3 / share[word]
        assert chances[word] == pytest.approx(min(1.0, np.sqrt(ratio) + ratio), rel=1e-6)
    assert chances[0] == 0
    assert chances[3] == 1
    text = np.full(20_000, 1)
    kept, borders = np.empty_like(text), np.empty_like(text)
    count, _ = kernels.keep(text, np.ones_like(text), thresholds(counts, 1e-3), 9, kept, borders)
    assert count / len(text) == pytest.approx(chances[1], abs=0.005)


def test_a_window_ends_where_its_document_does():
    inputs, outputs = np.full((4, 2), 0.5, np.float32), np.full((4, 2), 0.5, np.float32)
    drawn = (3, False, 0, *alias_table(np.zeros(0)), *huffman(np.array([4, 3, 2, 1])), NONE, NONE, NONE, -1)
    text, borders = np.array([0, 1, 2, 3]), np.array([1, 1, 2, 2])
    _, answers = kernels.learn(
        *(False, inputs, outputs, text, borders, np.uint64(1), *drawn, 0.1, *kernels.tables(), False, NOWHERE, NOWHERE)
    )
    assert answers == 4


def test_what_is_walked_through_is_what_is_touched():
    rng = np.random.default_rng(1)
    text = rng.integers(0, 50, 40)
    noise, borders, state = np.arange(1.0, 301.0), np.repeat([1, 2], 20), np.uint64(8)
    for cbow, positions in ((False, -1), (True, -1), (True, 290)):
        no_tree = (np.zeros((1, 0), np.int64), np.zeros((1, 0), np.float32))
        drawn = (4, True, 5, *alias_table(noise), *no_tree, NONE, NONE, NONE, positions)
        marks = np.zeros((2, 300), np.int64)
        kernels.touch(cbow, text, borders, state, *drawn, *marks)
        tables = rng.normal(0, 0.2, (2, 300, 8)).astype(np.float32)
        before = tables.copy()
        kernels.learn(*(cbow, *tables, text, borders, state, *drawn, 0.1, *kernels.tables(), False, NOWHERE, NOWHERE))
        assert ((tables != before).any(axis=2) == (marks > 0)).all()


@pytest.mark.parametrize("counts", [[3, 4], [3, -4, 5], [3.0, 4.0, 5.0]])
def test_counts_that_are_none_are_refused(counts, tmp_path):
    tensor = torch.tensor(counts)
    shape = tuple(tensor.shape)
    record = write_pieces(tmp_path / "rank.safetensors", [TensorPiece(COUNTS, shape, (0,), shape, tensor)])
    with pytest.raises(UserError, match="counts is not how often each of 3 words comes: take another checkpoint"):
        read_counts(TensorReader(tmp_path, [record]), 3)


def twice(number):
    return 2 * number


def test_where_nothing_can_be_kept_loops_are_compiled_all_the_same(monkeypatch):
    """As in a container whose files, and whose home, are read-only."""
    monkeypatch.setattr("numba.core.caching.CompileResultCacheImpl._locator_classes", [])
    assert compiled()(twice)(21) == 42


def test_what_is_kept_of_a_loop_and_was_cut_short_is_made_again(monkeypatch, tmp_path):
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(tmp_path))
    assert compiled()(twice)(21) == 42
    for suffix, size in ((".nbc", 9), (".nbi", 9), (".nbi", 0)):
        [path] = tmp_path.rglob(f"*{suffix}")
        whole = path.stat().st_size
        os.truncate(path, size)
        assert compiled()(twice)(21) == 42
        assert path.stat().st_size == whole
