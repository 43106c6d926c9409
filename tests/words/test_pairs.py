"""How often words come near each other: as the released code counts, and as one counts by hand; whoever counts."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
import torch

from megaptm.objectives.pairs import GloVe
from megaptm.words import pairs
from megaptm.words.pair_kernels import learn_pairs
from megaptm.words.sharded_table import Exchange
from tests import ROOT
from tests.ranks import run_ranks

GOLDEN = np.load(ROOT / "tests/golden/glove.npz")
SETTINGS = json.loads(str(GOLDEN["meta_json"]))
WORDS = [*GOLDEN["vocabulary"]]
ALL = np.ones(len(WORDS), bool)
ALONE = Exchange(0, 1, None)


def texts() -> list[np.ndarray]:
    return [np.array([WORDS.index(word) for word in line.split()]) for line in GOLDEN["lines"]]


def table_of(counts: pairs.PairCounts, task: GloVe, vocabulary: int) -> dict[tuple[int, int], float]:
    words, contexts = np.divmod(counts.keys, vocabulary)
    found = (counts.counts / pairs.unit_of(task)).tolist()
    return dict(zip(zip(words.tolist(), contexts.tolist(), strict=True), found, strict=True))


@pytest.mark.parametrize(
    ("name", "options"),
    [("symmetric", {}), ("left_only", {"symmetric": False}), ("unweighted", {"distance_weighting": False})],
)
def test_counts_are_the_released_codes(name, options):
    task = GloVe(window=SETTINGS["window"], min_count=1, **options)
    counted = pairs.count_pairs([(1.0, iter([texts()[:9], texts()[9:]]))], ALL, task, ALONE)
    word, context, value = (GOLDEN[f"cooccurrence.{name}.{field}"].tolist() for field in ("word", "context", "value"))
    wanted = {(w - 1, c - 1): v for w, c, v in zip(word, context, value, strict=True)}
    # Of the two most frequent words, which is the first pair of its table, the released code counts all twice.
    wanted[0, 0] /= 2
    found = table_of(counted, task, len(WORDS))
    assert found.keys() == wanted.keys()
    assert [*found.values()] == pytest.approx([wanted[pair] for pair in found], rel=1e-12)


def test_ten_thousand_words_are_counted_as_by_hand(monkeypatch):
    """Words that take no part leave no gap, documents are borders, and pieces of one document are none."""
    monkeypatch.setattr(pairs, "COUNTED_AT_ONCE", 700)
    rng, task = np.random.default_rng(2), GloVe(window=7, min_count=1)
    documents = [rng.integers(0, 60, length) for length in (4000, 1, 0, 3000, 2999)]
    takes_part = np.arange(60) % 7 > 0
    by_hand: Counter[tuple[int, int]] = Counter()
    for document in documents:
        kept = document[takes_part[document]].tolist()
        for at, word in enumerate(kept):
            for distance, other in enumerate(kept[at + 1 : at + 8], 1):
                by_hand[word, other] += 420 // distance
                by_hand[other, word] += 420 // distance
    counted = pairs.count_pairs([(1.0, iter([documents[:2], documents[2:]]))], takes_part, task, ALONE)
    assert table_of(counted, task, 60) == {pair: count / 420 for pair, count in by_hand.items()}


def test_ranks_count_what_one_counts():
    (alone,) = run_ranks(1, counted, 1)
    for ranks in (2, 3):
        parts = run_ranks(ranks, counted, ranks)
        assert sorted(pair for part in parts for pair in part) == sorted(alone)
        assert all(len(part) < len(alone) for part in parts)


def counted(ranks: int) -> list[tuple[int, int]]:
    """Pairs and counts of two corpora, of which one counts a third, as this rank holds them; words of all lanes."""
    rank = torch.distributed.get_rank() if ranks > 1 else 0
    exchange = Exchange(rank, ranks, torch.distributed.group.WORLD if ranks > 1 else None)
    halves = [(share, iter([[text] for text in some[rank::ranks]])) for share, some in both_halves()]
    found = pairs.count_pairs(halves, np.ones(120, bool), GloVe(min_count=1), exchange)
    return [*zip(found.keys.tolist(), found.counts.tolist(), strict=True)]


def both_halves() -> list[tuple[float, list[np.ndarray]]]:
    spread = [6 * text for text in texts()]
    return [(1.0, spread[:25]), (1 / 3, spread[25:])]


def test_an_epoch_reads_each_pair_once_and_another_in_another_order():
    task = GloVe(min_count=1)
    counted = pairs.count_pairs([(1.0, iter([texts()]))], ALL, task, ALONE)
    number = len(counted.keys)
    options = {"vocabulary": len(WORDS), "unit": pairs.unit_of(task), "pairs": number, "per_step": number // 4}
    table = pairs.PairTable(counted, seed=(1, "a"), **options)
    assert table.steps == 4
    read = [table.of_step(step) for step in range(8)]
    keys = [one.words * len(WORDS) + one.contexts for one in read]
    for epoch in (keys[:4], keys[4:]):
        assert sorted(np.concatenate(epoch)) == [*counted.keys]
    assert [*keys[0]] != [*keys[4]]
    assert [len(one) for one in keys] == pytest.approx([number / 4] * 8, rel=0.4)
    again = pairs.PairTable(counted, seed=(1, "a"), **options)
    assert (again.of_step(5).words == read[5].words).all()
    for one in read:
        for round_ in range(128):
            some = slice(*one.rounds[round_ : round_ + 2])
            assert ((one.contexts[some] - one.words[some]) % 128 == round_).all()


def rows() -> list[np.ndarray]:
    """float32 [20, 14] twice: the vectors and biases that the released code began with, and its sums of squares."""
    begun = GOLDEN["before"].astype(np.float32)
    return [np.ascontiguousarray(np.concatenate([table, np.ones_like(table)], 1)) for table in begun]


def learn(tables, words, contexts, counts, rate=0.05) -> float:
    losses = np.zeros(128)
    learn_pairs(*(*tables, words, contexts, counts, 128, 0, 0, SETTINGS["x_max"], SETTINGS["alpha"], rate, 1.0, losses))
    return losses.sum()


@pytest.mark.parametrize("epochs", [1, 5])
def test_pairs_move_the_tables_as_the_released_code_moves_them(epochs):
    tables = rows()
    order = [GOLDEN[f"order.{name}"] for name in ("word", "context", "value")]
    for _ in range(epochs):
        learn(tables, order[0].astype(np.int64) - 1, order[1].astype(np.int64) - 1, order[2])
    for name, numbers in (("after", slice(0, 7)), ("gradient_squares", slice(7, 14))):
        found = np.stack(tables)[..., numbers]
        assert np.abs(found - GOLDEN[f"{name}_{epochs}"]).max() < 1e-5 * max(1, np.abs(found).max())
    names, result = [*GOLDEN[f"result_{epochs}.words"]], GOLDEN[f"result_{epochs}.vectors"]
    sums = tables[0][:, :6] + tables[1][:, :6]
    for word, row in zip(WORDS, sums, strict=True):
        assert row == pytest.approx(result[names.index(word)], abs=2e-5)


def test_an_update_is_the_gradient_of_the_closed_form():
    """Of half the loss, as in the released code; of counts below x_max and above."""
    for count in (3.0, 20.0):
        tables = rows()
        begun = [torch.from_numpy(table.copy()).double().requires_grad_() for table in tables]
        word, context = begun[0][4], begun[1][9]
        off = word[:6] @ context[:6] + word[6] + context[6] - np.log(count)
        loss = min(1.0, (count / 10) ** 0.75) * off**2
        (0.5 * loss).backward()
        assert learn(tables, np.array([4]), np.array([9]), np.array([count])) == pytest.approx(loss.item(), rel=1e-5)
        for table, before in zip(tables, begun, strict=True):
            rates = np.array([0.05] * 6 + [1.0])
            moved = before.detach().numpy()[:, :7] - rates * before.grad.numpy()[:, :7]
            assert np.abs(table[:, :7] - moved).max() < 1e-6
        kept = [table.copy() for table in tables]
        learn(tables, np.array([4]), np.array([9]), np.array([count]), rate=0.0)
        assert all((table == before).all() for table, before in zip(tables, kept, strict=True))
