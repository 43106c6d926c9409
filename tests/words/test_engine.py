"""Word vectors are bit-identical on any number of ranks and after a resume."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from megaptm.checkpoint.store import CheckpointStore
from megaptm.config import Layout
from megaptm.errors import UserError
from megaptm.families.word_vectors import FASTTEXT, WORD2VEC, WordSize, WordSpec
from megaptm.families.word_vectors.engine import WordEngine
from megaptm.families.word_vectors.sharded_table import Exchange
from megaptm.families.word_vectors.vectors import WordVectors
from megaptm.families.word_vectors.windows import CBOW, SkipGram
from megaptm.parallel.step_result import DivergedError
from tests.ranks import run_ranks
from tests.words import planted

VOCABULARY, LENGTH, SEQUENCES, STEPS = 300, 60, 4, 3
SPEC = WordSpec(family=WORD2VEC, size=WordSize(width=12), vocabulary=VOCABULARY)
SUBWORD_SPEC = WordSpec(family=FASTTEXT, size=WordSize(width=12, buckets=70, ngrams=(2, 3)), vocabulary=VOCABULARY)
TASKS = {
    "skip-gram": SkipGram(min_count=1, subsample=0.01),
    "cbow": CBOW(min_count=1, subsample=0.01),
    "skip-gram tree": SkipGram(min_count=1, output="hierarchical-softmax"),
    "cbow tree": CBOW(min_count=1, output="hierarchical-softmax"),
    "skip-gram softmax": SkipGram(min_count=1, output="softmax"),
    "fasttext skip-gram": SkipGram(min_count=1, subsample=0.01),
    "fasttext cbow": CBOW(min_count=1, subsample=0.01),
}
NAMES = [f"{number * number}" for number in range(VOCABULARY)]


def text() -> np.ndarray:
    """Return int64 [STEPS, SEQUENCES, LENGTH], in which a few words are most of the text."""
    return (np.random.default_rng(4).pareto(0.8, (STEPS, SEQUENCES, LENGTH)) * 4).astype(np.int64) % VOCABULARY


def count_words(exchange: Exchange) -> np.ndarray:
    """Return the counts of all words; each rank counts a part of the text."""
    part = text().reshape(STEPS * SEQUENCES, -1)[exchange.rank :: exchange.ranks]
    return exchange.all_reduce(np.bincount(part.reshape(-1), minlength=VOCABULARY))


def make_batches(step: int, rank: int, ranks: int, sequences: int = SEQUENCES) -> list[dict[str, torch.Tensor]]:
    per_rank = sequences // ranks
    return [
        {
            "tokens": torch.from_numpy(text()[step, index])[None],
            "document_ids": torch.from_numpy(1 + np.arange(LENGTH) // 25)[None],
            "seed": torch.tensor([1000 * step + index]),
        }
        for index in range(rank * per_rank, (rank + 1) * per_rank)
    ]


def build_engine(task: str, data: int) -> WordEngine:
    spec = SUBWORD_SPEC if task.startswith("fasttext") else SPEC
    return WordEngine(
        spec,
        Layout(data=data),
        TASKS[task],
        seed=7,
        special=frozenset({0}),
        names=NAMES,
        count_words=count_words,
    )


def train(
    task: str, data: int, folder: str | None = None, start: int = 0, stop: int = STEPS, sequences: int = SEQUENCES
):
    """Return the losses of the steps, the held-out loss, and this rank's part of the tables."""
    engine = build_engine(task, data)
    store = CheckpointStore(Path(folder), fence=lambda: True) if folder else None
    if start and store:
        engine.restore(store.load(start).reader, step=start)
    else:
        engine.init_weights()
    rank, losses = engine.ranks.data, []
    for step in range(start, stop):
        result = engine.train_step(make_batches(step, rank, data, sequences), step=step, lr=0.2)
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
    evaluation = engine.evaluate(make_batches(0, rank, data))
    tables = {name: (table.row_ids(), table.flat.copy()) for name, table in (("in", engine._in), ("out", engine._out))}
    return {"losses": losses, "evaluation": evaluation.loss, "counts": engine.counts, "tables": tables}


def join_table(results, name: str) -> np.ndarray:
    """Return float32 [V, D]: the table joined from the parts of all ranks."""
    table = np.full((sum(len(result["tables"][name][0]) for result in results), 12), np.nan, np.float32)
    for result in results:
        row_ids, rows = result["tables"][name]
        table[row_ids] = rows
    assert not np.isnan(table).any()
    return table


def train_all(data: int):
    """Train all tasks in one process group, because starting one takes longer than training."""
    return {task: train(task, data) for task in TASKS}


@cache
def trained(data: int):
    """Return for each rank a dictionary: task -> result of `train`."""
    return run_ranks(data, train_all, data)


def train_on_one_rank(task: str):
    return [trained(1)[0][task]]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("data", [2, 4])
def test_tables_are_bit_identical_on_any_number_of_ranks(task, data):
    results = [rank[task] for rank in trained(data)]
    [expected] = train_on_one_rank(task)
    for result in results:
        assert result["losses"] == expected["losses"]
        assert result["evaluation"] == expected["evaluation"]
        assert (result["counts"] == expected["counts"]).all()
    for name in ("in", "out"):
        assert (join_table(results, name) == join_table(train_on_one_rank(task), name)).all()
        assert len(results[0]["tables"][name][0]) == 384 // data


def test_three_ranks_hold_all_rows():
    """3 does not divide the 128 lanes."""
    results = run_ranks(3, held_rows, "skip-gram", 3)
    assert sorted(np.concatenate(results)) == [*range(384)]


def held_rows(task: str, data: int) -> list[int]:
    engine = build_engine(task, data)
    engine.init_weights()
    return engine._in.row_ids().tolist()


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 2)])
def test_resume_is_bit_identical_on_other_ranks(before, after, tmp_path):
    run_ranks(before, train, "skip-gram", before, str(tmp_path), 0, 2)
    results = run_ranks(after, train, "skip-gram", after, str(tmp_path), 2, 3)
    assert results[0]["losses"] == train_on_one_rank("skip-gram")[0]["losses"][2:]
    for name in ("in", "out"):
        assert (join_table(results, name) == join_table(train_on_one_rank("skip-gram"), name)).all()


def test_fused_step_matches_separate_step():
    (fused,) = run_ranks(1, train, "skip-gram", 1, None, 0, 1, 1)
    (separate,) = run_ranks(1, train_separately, "skip-gram")
    for name in ("in", "out"):
        assert np.abs(fused["tables"][name][1] - separate[name]).max() < 1e-6


def train_separately(task: str) -> dict[str, np.ndarray]:
    engine = build_engine(task, 1)
    engine.init_weights()
    engine._train_separately([*engine._subsample_words(make_batches(0, 0, 1, 1))], 0.2)
    return {"in": engine._in.flat, "out": engine._out.flat}


def test_special_tokens_are_not_trained():
    (result,) = train_on_one_rank("skip-gram")
    _, rows = result["tables"]["out"]
    assert not rows[0].any()
    assert rows[1].any()


def test_nan_loss_raises_diverged_error():
    message = run_ranks(2, step_with_nan, "skip-gram")[1]
    assert message.startswith("step 1 has a loss of nan, but untrained vectors have 4.159. The step was not saved")


@pytest.mark.parametrize("lr", [2.0, 1e3])
# A softmax has no sigmoid table: its values may overflow before the loss shows divergence.
@pytest.mark.parametrize("task", [task for task in TASKS if "softmax" not in task])
def test_too_high_learning_rate_raises_diverged_error(task, lr):
    """Scores beyond the sigmoid table cause no update, so all values stay finite."""
    assert "lower optimizer.lr" in run_ranks(1, train_until_divergence, task, lr)[0]


def train_until_divergence(task: str, lr: float) -> str:
    engine = build_engine(task, 1)
    engine.init_weights()

    def train_steps() -> None:
        for step in range(200):
            engine.train_step(make_batches(step % STEPS, 0, 1, 1), step=step, lr=lr)

    with pytest.raises(DivergedError) as caught:
        train_steps()
    assert np.isfinite(engine._in.flat).all()
    return str(caught.value)


def step_with_nan(task: str) -> str:
    engine = build_engine(task, 2)
    engine.init_weights()
    if engine.ranks.data == 0:
        engine._in.flat[:] = np.nan
    with pytest.raises(DivergedError) as caught:
        engine.train_step(make_batches(0, engine.ranks.data, 2), step=0, lr=0.1)
    return str(caught.value)


@pytest.mark.parametrize("sequences", [1, 4, 16])
def test_many_sequences_per_step_solve_all_analogies(sequences):
    """The plain sum of changes diverges for four sequences or more, as each updates most words a hundred times."""
    loss, solved, known = run_ranks(1, train_on_planted_text, sequences)[0]
    assert known == len(planted.questions())
    assert solved == known
    assert loss < 1.6


def train_on_planted_text(sequences: int) -> tuple[float, int, int]:
    """Train on 192 sequences; return the last loss, and the numbers of solved and of known analogies."""
    text = [sentence.split() for sentence in planted.sentences(4000, 3)]
    names = sorted({word for sentence in text for word in sentence})
    ids = {name: id_ for id_, name in enumerate(names)}
    tokens = torch.tensor([ids[word] for sentence in text for word in sentence])
    documents = torch.tensor([number for number, sentence in enumerate(text) for _ in sentence])
    counts, length = np.bincount(tokens.numpy()), 2000
    engine = WordEngine(
        WordSpec(family=WORD2VEC, size=WordSize(width=24), vocabulary=len(names)),
        Layout(),
        SkipGram(subsample=0, window=6, min_count=1),
        seed=1,
        special=frozenset(),
        count_words=lambda exchange: counts,
    )
    engine.init_weights()
    steps = 192 // sequences
    for step in range(steps):
        numbers = range(step * sequences, (step + 1) * sequences)
        batches = [
            {
                "tokens": tokens[first : first + length][None],
                "document_ids": documents[first : first + length][None],
                "seed": torch.tensor([number]),
            }
            for number in numbers
            for first in [number % (len(tokens) // length) * length]
        ]
        loss = engine.train_step(batches, step=step, lr=0.05 * (1 - step / steps)).loss
    vectors = WordVectors(names, counts, engine._in.flat[: len(names)])
    return loss, *vectors.count_solved_analogies(planted.questions())


def test_too_few_frequent_words_are_an_error():
    message = (
        "word2vec needs at least two words. In the corpora, 1 occur 78 times or more: lower min_count of skip-gram, or "
        "use more text."
    )
    assert run_ranks(2, fill_with_one_frequent_word, 2) == [message, message]


def fill_with_one_frequent_word(data: int) -> str:
    largest = int(count_words(Exchange(0, 1, None))[1:].max())
    task = replace(TASKS["skip-gram"], min_count=largest)
    engine = WordEngine(SPEC, Layout(data=data), task, seed=7, special=frozenset({0}), count_words=count_words)
    with pytest.raises(UserError) as caught:
        engine.init_weights()
    return str(caught.value)
