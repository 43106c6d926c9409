"""Whatever the number of ranks: the same tables to the last bit, from one process, and from any checkpoint."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from megaptm.checkpoint.store import Store
from megaptm.config import Layout
from megaptm.errors import UserError
from megaptm.families.words import FASTTEXT, WORD2VEC, WordSize, WordSpec
from megaptm.objectives.windows import CBOW, SkipGram
from megaptm.parallel.step_result import DivergedError
from megaptm.words.engine import WordEngine
from megaptm.words.sharded_table import Exchange
from megaptm.words.vectors import WordVectors
from tests.ranks import run_ranks
from tests.words import planted

VOCABULARY, LENGTH, ROWS, STEPS = 300, 60, 4, 3
SPEC = WordSpec(family=WORD2VEC, size=WordSize(width=12), vocabulary=VOCABULARY)
PIECES = WordSpec(family=FASTTEXT, size=WordSize(width=12, buckets=70, ngrams=(2, 3)), vocabulary=VOCABULARY)
TASKS = {
    "skip-gram": SkipGram(min_count=1, subsample=0.01),
    "cbow": CBOW(min_count=1, subsample=0.01),
    "skip-gram tree": SkipGram(min_count=1, output="hierarchical-softmax"),
    "cbow tree": CBOW(min_count=1, output="hierarchical-softmax"),
    "skip-gram softmax": SkipGram(min_count=1, output="softmax"),
    "fasttext skip-gram": SkipGram(min_count=1, subsample=0.01),
    "fasttext cbow": CBOW(min_count=1, subsample=0.01),
    "cbow places": CBOW(min_count=1, subsample=0.01, window=3, position_weights=True),
    "fasttext cbow places": CBOW(min_count=1, subsample=0.01, window=3, position_weights=True),
}
NAMES = [f"{number * number}" for number in range(VOCABULARY)]


def text() -> np.ndarray:
    """int64 [STEPS, ROWS, LENGTH]: few words are most of it."""
    return (np.random.default_rng(4).pareto(0.8, (STEPS, ROWS, LENGTH)) * 4).astype(np.int64) % VOCABULARY


def count_words(exchange: Exchange) -> np.ndarray:
    """Each rank counts a part of the text, as shards are dealt."""
    mine = text().reshape(STEPS * ROWS, -1)[exchange.rank :: exchange.ranks]
    return exchange.total(np.bincount(mine.reshape(-1), minlength=VOCABULARY))


def rows_of(step: int, rank: int, ranks: int, rows: int = ROWS) -> list[dict[str, torch.Tensor]]:
    mine = rows // ranks
    return [
        {
            "tokens": torch.from_numpy(text()[step, row])[None],
            "document_ids": torch.from_numpy(1 + np.arange(LENGTH) // 25)[None],
            "seed": torch.tensor([1000 * step + row]),
        }
        for row in range(rank * mine, (rank + 1) * mine)
    ]


def engine_of(task: str, data: int) -> WordEngine:
    spec = PIECES if task.startswith("fasttext") else SPEC
    return WordEngine(
        replace(spec, positions=6) if "places" in task else spec,
        Layout(data=data),
        TASKS[task],
        seed=7,
        special=frozenset({0}),
        names=NAMES,
        count_words=count_words,
    )


def train(task: str, data: int, folder: str | None = None, start: int = 0, stop: int = STEPS, rows: int = ROWS):
    """Losses of some steps, the held-out loss, and the tables at the end, as this rank has them."""
    engine = engine_of(task, data)
    store = Store(Path(folder), fence=lambda: True) if folder else None
    if start and store:
        engine.restore(store.load(start).reader, step=start)
    else:
        engine.fill()
    rank, losses = engine.ranks.data, []
    for step in range(start, stop):
        result = engine.step(rows_of(step, rank, data, rows), step=step, lr=0.2)
        losses.append(result.loss)
    if store and not start:
        torch.distributed.barrier()
        if rank == 0:
            store.prepare(stop)
        torch.distributed.barrier()
        store.write(stop, rank, list(engine.pieces()))
        torch.distributed.barrier()
        if rank == 0:
            store.commit(stop, {}, ranks=data)
    evaluation = engine.evaluate(rows_of(0, rank, data))
    tables = {name: (table.numbers(), table.flat.copy()) for name, table in (("in", engine._in), ("out", engine._out))}
    return {"losses": losses, "evaluation": evaluation.loss, "counts": engine.counts, "tables": tables}


def whole(results, name: str) -> np.ndarray:
    """float32 [V, D]: a table, put together from what ranks hold."""
    table = np.full((sum(len(result["tables"][name][0]) for result in results), 12), np.nan, np.float32)
    for result in results:
        numbers, rows = result["tables"][name]
        table[numbers] = rows
    assert not np.isnan(table).any()
    return table


def train_all(data: int):
    """Each task, in one world: to start one takes longer."""
    return {task: train(task, data) for task in TASKS}


@cache
def trained(data: int):
    """By each rank: task -> what `train` gives."""
    return run_ranks(data, train_all, data)


def alone(task: str):
    return [trained(1)[0][task]]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("data", [2, 4])
def test_a_layout_changes_no_bit(task, data):
    results = [rank[task] for rank in trained(data)]
    for result in results:
        for part in ("losses", "evaluation"):
            assert result[part] == alone(task)[0][part]
        assert (result["counts"] == alone(task)[0]["counts"]).all()
    for name in ("in", "out"):
        assert (whole(results, name) == whole(alone(task), name)).all()
        assert len(results[0]["tables"][name][0]) == 384 // data


def test_ranks_that_do_not_divide_the_lanes_hold_all_rows():
    results = run_ranks(3, filled, "skip-gram", 3)
    assert sorted(np.concatenate(results)) == [*range(384)]


def filled(task: str, data: int) -> list[int]:
    engine = engine_of(task, data)
    engine.fill()
    return engine._in.numbers().tolist()


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 2)])
def test_a_run_goes_on_on_any_number_of_ranks(before, after, tmp_path):
    run_ranks(before, train, "skip-gram", before, str(tmp_path), 0, 2)
    results = run_ranks(after, train, "skip-gram", after, str(tmp_path), 2, 3)
    assert results[0]["losses"] == alone("skip-gram")[0]["losses"][2:]
    for name in ("in", "out"):
        assert (whole(results, name) == whole(alone("skip-gram"), name)).all()


def test_a_step_of_one_row_is_learned_in_place_and_like_any_other():
    (in_place,) = run_ranks(1, train, "skip-gram", 1, None, 0, 1, 1)
    (apart,) = run_ranks(1, apart_from_others, "skip-gram")
    for name in ("in", "out"):
        assert np.abs(in_place["tables"][name][1] - apart[name]).max() < 1e-6


def apart_from_others(task: str) -> dict[str, np.ndarray]:
    engine = engine_of(task, 1)
    engine.fill()
    engine._learn_apart([*engine._rows(rows_of(0, 0, 1, 1))], 0.2)
    return {"in": engine._in.flat, "out": engine._out.flat}


def test_specials_are_never_learned():
    (result,) = alone("skip-gram")
    _, rows = result["tables"]["out"]
    assert not rows[0].any()
    assert rows[1].any()


def test_a_loss_that_is_no_number_ends_the_run():
    told = run_ranks(2, diverged, "skip-gram")[1]
    assert told.startswith("step 1 has a loss of nan, where vectors that know nothing have 4.159, and was not saved")


@pytest.mark.parametrize("lr", [2.0, 1e3])
# A softmax has no table to leave: its numbers may overflow on the way.
@pytest.mark.parametrize("task", [task for task in TASKS if "softmax" not in task])
def test_a_rate_at_which_nothing_is_learned_ends_the_run(task, lr):
    """Products beyond the table of sigmoids move nothing, so all numbers stay finite."""
    assert "lower optimizer.lr" in run_ranks(1, overshot, task, lr)[0]


def overshot(task: str, lr: float) -> str:
    engine = engine_of(task, 1)
    engine.fill()

    def run() -> None:
        for step in range(200):
            engine.step(rows_of(step % STEPS, 0, 1, 1), step=step, lr=lr)

    with pytest.raises(DivergedError) as caught:
        run()
    assert np.isfinite(engine._in.flat).all()
    return str(caught.value)


def diverged(task: str) -> str:
    engine = engine_of(task, 2)
    engine.fill()
    if engine.ranks.data == 0:
        engine._in.flat[:] = np.nan
    with pytest.raises(DivergedError) as caught:
        engine.step(rows_of(0, engine.ranks.data, 2), step=0, lr=0.1)
    return str(caught.value)


@pytest.mark.parametrize("rows", [1, 4, 16])
def test_many_rows_a_step_learn_what_one_after_the_other_learn(rows):
    """The sum of what rows change would diverge from four of them on: each moves most words a hundred times."""
    loss, (right, known) = run_ranks(1, learned, rows)[0]
    assert (right, known) == (known, len(planted.questions()))
    assert loss < 1.6


def learned(rows: int) -> tuple[float, tuple[int, int]]:
    """The last loss, and how many analogies are answered, after so much text in steps of so many rows."""
    text = [one.split() for one in planted.sentences(4000, 3)]
    names = sorted({word for one in text for word in one})
    numbers = {name: number for number, name in enumerate(names)}
    tokens = torch.tensor([numbers[word] for one in text for word in one])
    documents = torch.tensor([number for number, one in enumerate(text) for _ in one])
    counts, length = np.bincount(tokens.numpy()), 2000
    engine = WordEngine(
        WordSpec(family=WORD2VEC, size=WordSize(width=24), vocabulary=len(names)),
        Layout(),
        SkipGram(subsample=0, window=6, min_count=1),
        seed=1,
        special=frozenset(),
        count_words=lambda exchange: counts,
    )
    engine.fill()
    steps = 192 // rows
    for step in range(steps):
        at = [(step * rows + row) % (len(tokens) // length) * length for row in range(rows)]
        batches = [
            {
                "tokens": tokens[first : first + length][None],
                "document_ids": documents[first : first + length][None],
                "seed": torch.tensor([step * rows + row]),
            }
            for row, first in enumerate(at)
        ]
        loss = engine.step(batches, step=step, lr=0.05 * (1 - step / steps)).loss
    vectors = WordVectors(names, counts, engine._in.flat[: len(names)])
    return loss, vectors.accuracy(planted.questions())


def test_words_that_are_all_too_rare_are_no_text_to_learn_from():
    for told in run_ranks(2, refused, 2):
        assert told == (
            "word2vec learns words from one another, and of the corpora's 1 come as often as 78 times: lower min_count "
            "of skip-gram, or give more text."
        )


def refused(data: int) -> str:
    often = int(count_words(Exchange(0, 1, None))[1:].max())
    task = replace(TASKS["skip-gram"], min_count=often)
    engine = WordEngine(SPEC, Layout(data=data), task, seed=7, special=frozenset({0}), count_words=count_words)
    with pytest.raises(UserError) as caught:
        engine.fill()
    return str(caught.value)
