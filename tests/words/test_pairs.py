"""Co-occurrence counts and updates match GloVe's released code, on any number of ranks."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
import torch

from megaptm.families.word_vectors import pairs
from megaptm.families.word_vectors.compiled.pair_kernels import train_pairs
from megaptm.families.word_vectors.glove import GloVe
from megaptm.families.word_vectors.sharded_table import Exchange
from tests import ROOT
from tests.ranks import run_ranks

GOLDEN = np.load(ROOT / "tests/golden/glove.npz")
SETTINGS = json.loads(str(GOLDEN["meta_json"]))
WORDS = [*GOLDEN["vocabulary"]]
ALL_WORDS = np.ones(len(WORDS), bool)
SINGLE_RANK = Exchange(0, 1, None)


def texts() -> list[np.ndarray]:
    return [np.array([WORDS.index(word) for word in line.split()]) for line in GOLDEN["lines"]]


def counts_by_pair(counts: pairs.PairCounts, task: GloVe, vocabulary: int) -> dict[tuple[int, int], float]:
    words, contexts = np.divmod(counts.keys, vocabulary)
    values = (counts.counts / pairs.units_per_count(task)).tolist()
    return dict(zip(zip(words.tolist(), contexts.tolist(), strict=True), values, strict=True))


@pytest.mark.parametrize(
    ("name", "options"),
    [("symmetric", {}), ("left_only", {"symmetric": False}), ("unweighted", {"distance_weighting": False})],
)
def test_pair_counts_match_glove(name, options):
    task = GloVe(window=SETTINGS["window"], min_count=1, **options)
    counted = pairs.count_pairs([(1.0, iter([texts()[:9], texts()[9:]]))], ALL_WORDS, task, SINGLE_RANK)
    word, context, value = (GOLDEN[f"cooccurrence.{name}.{field}"].tolist() for field in ("word", "context", "value"))
    expected = {(w - 1, c - 1): v for w, c, v in zip(word, context, value, strict=True)}
    # The released code counts the first pair of its table, of the most frequent word with itself, twice.
    expected[0, 0] /= 2
    counts = counts_by_pair(counted, task, len(WORDS))
    assert counts.keys() == expected.keys()
    assert [*counts.values()] == pytest.approx([expected[pair] for pair in counts], rel=1e-12)


def test_pair_counts_match_a_plain_loop(monkeypatch):
    """Excluded words leave no gap, windows end with the document, and parts of one document are joined."""
    monkeypatch.setattr(pairs, "WORDS_PER_PASS", 700)
    rng, task = np.random.default_rng(2), GloVe(window=7, min_count=1)
    documents = [rng.integers(0, 60, length) for length in (4000, 1, 0, 3000, 2999)]
    takes_part = np.arange(60) % 7 > 0
    expected: Counter[tuple[int, int]] = Counter()
    for document in documents:
        words = document[takes_part[document]].tolist()
        for position, word in enumerate(words):
            for distance, other in enumerate(words[position + 1 : position + 8], 1):
                expected[word, other] += 420 // distance
                expected[other, word] += 420 // distance
    counted = pairs.count_pairs([(1.0, iter([documents[:2], documents[2:]]))], takes_part, task, SINGLE_RANK)
    assert counts_by_pair(counted, task, 60) == {pair: count / 420 for pair, count in expected.items()}


@pytest.mark.parametrize("ranks", [2, 3])
def test_pair_counts_do_not_depend_on_ranks(ranks):
    (expected,) = run_ranks(1, count_two_corpora, 1)
    parts = run_ranks(ranks, count_two_corpora, ranks)
    assert sorted(pair for part in parts for pair in part) == sorted(expected)
    assert max(map(len, parts)) < len(expected)


def count_two_corpora(ranks: int) -> list[tuple[int, int]]:
    """Return this rank's pairs and counts of two corpora, the second with weight 1/3, with words in all lanes."""
    rank = torch.distributed.get_rank() if ranks > 1 else 0
    exchange = Exchange(rank, ranks, torch.distributed.group.WORLD if ranks > 1 else None)
    spread = [6 * text for text in texts()]
    corpora = [(1.0, spread[:25]), (1 / 3, spread[25:])]
    parts = [(weight, iter([[text] for text in corpus[rank::ranks]])) for weight, corpus in corpora]
    counted = pairs.count_pairs(parts, np.ones(120, bool), GloVe(min_count=1), exchange)
    return [*zip(counted.keys.tolist(), counted.counts.tolist(), strict=True)]


def test_each_epoch_has_every_pair_once_in_new_order():
    task = GloVe(min_count=1)
    counted = pairs.count_pairs([(1.0, iter([texts()]))], ALL_WORDS, task, SINGLE_RANK)
    number = len(counted.keys)
    options = {"vocabulary": len(WORDS), "unit": pairs.units_per_count(task), "pairs": number, "per_step": number // 4}
    table = pairs.PairTable(counted, seed=(1, "a"), **options)
    assert table.steps == 4
    steps = [table.select(step) for step in range(8)]
    keys = [step.words * len(WORDS) + step.contexts for step in steps]
    for epoch in (keys[:4], keys[4:]):
        assert sorted(np.concatenate(epoch)) == [*counted.keys]
    assert [*keys[0]] != [*keys[4]]
    assert [*map(len, keys)] == pytest.approx([number / 4] * 8, rel=0.4)
    same_table = pairs.PairTable(counted, seed=(1, "a"), **options)
    assert (same_table.select(5).words == steps[5].words).all()
    for step in steps:
        rounds = np.repeat(np.arange(128), np.diff(step.rounds))
        assert ((step.contexts - step.words) % 128 == rounds).all()


def initial_tables() -> list[np.ndarray]:
    """Return float32 [20, 14] twice: initial vectors and biases of the released code, and its sums of squares."""
    return [np.concatenate([table, np.ones_like(table)], 1) for table in GOLDEN["before"].astype(np.float32)]


def train_on(tables, words, contexts, counts, rate=0.05) -> float:
    losses = np.zeros(128)
    train_pairs(*(*tables, words, contexts, counts, 128, 0, 0, SETTINGS["x_max"], SETTINGS["alpha"], rate, 1.0, losses))
    return losses.sum()


@pytest.mark.parametrize("epochs", [1, 5])
def test_training_matches_glove(epochs):
    tables = initial_tables()
    order = [GOLDEN[f"order.{name}"] for name in ("word", "context", "value")]
    for _ in range(epochs):
        train_on(tables, order[0].astype(np.int64) - 1, order[1].astype(np.int64) - 1, order[2])
    for name, columns in (("after", slice(0, 7)), ("gradient_squares", slice(7, 14))):
        values = np.stack(tables)[..., columns]
        assert np.abs(values - GOLDEN[f"{name}_{epochs}"]).max() < 1e-5 * max(1, np.abs(values).max())
    names, result = [*GOLDEN[f"result_{epochs}.words"]], GOLDEN[f"result_{epochs}.vectors"]
    sums = tables[0][:, :6] + tables[1][:, :6]
    for word, row in zip(WORDS, sums, strict=True):
        assert row == pytest.approx(result[names.index(word)], abs=2e-5)


@pytest.mark.parametrize("count", [3.0, 20.0])
def test_pair_update_matches_autograd(count):
    """The gradient is that of half the loss, as in the released code; x_max is 10. A rate of 0 updates nothing."""
    tables = initial_tables()
    initial = [torch.from_numpy(table.copy()).double().requires_grad_() for table in tables]
    word, context = initial[0][4], initial[1][9]
    error = word[:6] @ context[:6] + word[6] + context[6] - np.log(count)
    loss = min(1.0, (count / 10) ** 0.75) * error**2
    (0.5 * loss).backward()
    assert train_on(tables, np.array([4]), np.array([9]), np.array([count])) == pytest.approx(loss.item(), rel=1e-5)
    for table, before in zip(tables, initial, strict=True):
        rates = np.array([0.05] * 6 + [1.0])
        expected = before.detach().numpy()[:, :7] - rates * before.grad.numpy()[:, :7]
        assert np.abs(table[:, :7] - expected).max() < 1e-6
    trained = [table.copy() for table in tables]
    train_on(tables, np.array([4]), np.array([9]), np.array([count]), rate=0.0)
    assert all((table == before).all() for table, before in zip(tables, trained, strict=True))
