"""GloVe from text to vectors: on any number of ranks the same to the last bit, and read by gensim."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from megaptm.__main__ import main
from megaptm.config import load, resolve
from megaptm.errors import UserError
from megaptm.launch.local import train
from megaptm.parallel.step_result import DivergedError
from megaptm.run.checkpoint import open_checkpoint
from megaptm.run.corpora import RunCorpora
from megaptm.run.rank import RankEnvironment
from megaptm.tokenizers import load as load_tokenizer
from megaptm.track.journal import read_metrics
from megaptm.train.checkpointer import Checkpointer
from megaptm.train.pair_source import PairSource
from megaptm.words import kept_pairs
from megaptm.words.export import export as write
from megaptm.words.pair_engine import PairEngine
from megaptm.words.vectors import load_words
from tests.checkpoint.test_store import change_byte
from tests.data.corpora import tiny_corpus
from tests.ranks import run_ranks

CONFIG = Path(__file__).parents[2] / "configs/glove/tiny.yaml"
STEPS = 40


def settings(run: str | Path, corpus: str | Path, *more: str) -> list[str]:
    return [
        *(f"run={run}", f"data.mix={{{corpus}: 1}}", "data.sequence=60", "model.width=16", "track.enabled=false"),
        *("objective={glove: {window: 6, x_max: 20}}", "train.batch=6", f"train.steps={STEPS}"),
        *("train.validate_batches=1", *more),
    ]


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    """Half of it on one rank, half on two."""
    folder = tmp_path_factory.mktemp("runs") / "planted"
    assert train(CONFIG, settings(folder, corpus, "train.stop_at=20")) == 75
    assert train(CONFIG, settings(folder, corpus, "layout.data=2")) == 0
    return folder


def last(run: Path, name: str) -> float:
    return [line[name] for line in read_metrics(run) if name in line][-1]


def engine_of(corpus: str, *more: str) -> PairEngine:
    config = load(CONFIG, settings("unused", corpus, *more))
    corpora = RunCorpora(config)
    engine = PairEngine(replace(resolve(config), vocabulary=corpora.tokenizer.vocabulary), config, corpora)
    engine.count()
    engine.fill()
    return engine


def learned(corpus: str, ranks: int, steps: int):
    """The losses of some steps, the held-out loss, and both tables as this rank has them: which rows, and these."""
    engine = engine_of(corpus, f"layout.data={ranks}")
    losses = [engine.step([], step=step, lr=0.05).loss for step in range(steps)]
    tables = [(table.numbers(), table.flat.copy()) for table in (engine._words, engine._contexts)]
    return [*losses, engine.evaluate([0]).loss], tables


def whole(results, table: int) -> np.ndarray:
    rows = {number: row for _, tables in results for number, row in zip(*tables[table], strict=True)}
    return np.stack([rows[number] for number in range(len(rows))])


def test_stopped_and_continued_on_two_ranks_it_is_one_ranks(run, corpus):
    one = run_ranks(1, learned, str(corpus), 1, STEPS)
    weights = open_checkpoint(run).weights()
    for table, name in enumerate(("word", "context")):
        assert (whole(one, table) == weights[name].reshape(-1, 34).numpy()).all()
    assert last(run, "validation/loss") == one[0][0][-1]


def test_a_run_of_other_text_is_refused_before_its_pairs_are_counted(run, corpus):
    [(told, counted)] = run_ranks(1, go_on_with_other_text, str(run), str(corpus))
    assert "was built again since" in told
    assert counted == 0


def test_what_was_counted_is_read_by_who_goes_on_and_counted_again_where_it_is_damaged(corpus, tmp_path):
    def count(ranks: int, window: int = 6, free: int = 1 << 40) -> tuple[list[str], list[np.ndarray]]:
        found = run_ranks(ranks, counted, str(corpus), str(tmp_path), ranks, window, free)
        keys, counts = (np.concatenate([one[1][number] for one in found]) for number in (0, 1))
        return found[-1][0], [keys[order := np.argsort(keys)], counts[order], found[-1][1][2]]

    [*splits], begun = count(1)
    assert splits == ["train", "validation"]
    for ranks in (3, 1):
        read, gone_on = count(ranks)
        assert not read
        assert all((one == other).all() for one, other in zip(begun, gone_on, strict=True))
    change_byte(next(tmp_path.rglob("rank-00000.safetensors")), -1)
    for ranks, splits in ((3, ["train", "validation"]), (1, [])):
        read, gone_on = count(ranks)
        assert read == splits
        assert all((one == other).all() for one, other in zip(begun, gone_on, strict=True))
    # Of something else, and where checkpoints would have no room beside it, it is counted, and not kept.
    for _ in range(2):
        assert count(1, window=5, free=100_000)[0]
    assert not count(1)[0]


def counted(corpus: str, run: str, ranks: int, window: int, free: int) -> tuple[list[str], list[np.ndarray]]:
    """Which splits were read, and of this rank the pairs and the words."""
    objective = f"objective={{glove: {{window: {window}}}}}"
    config = load(CONFIG, settings("unused", corpus, f"layout.data={ranks}", objective))
    corpora, read = RunCorpora(config), []
    corpora.texts = lambda split, *part: read.append(split) or RunCorpora.texts(corpora, split, *part)
    spec = replace(resolve(config), vocabulary=corpora.tokenizer.vocabulary)
    engine = PairEngine(spec, config, corpora, run=Path(run))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_pairs, "free_bytes", lambda folder: free)
        engine.count()
    held = engine.pairs.held
    return read, [held.keys, held.counts, engine.counts]


def go_on_with_other_text(run: str, corpus: str) -> tuple[str, int]:
    config = load(CONFIG, settings(run, corpus))
    corpora = RunCorpora(config)
    spec = replace(resolve(config), vocabulary=corpora.tokenizer.vocabulary)
    source = PairSource(config, corpora, engine := PairEngine(spec, config, corpora))
    source.train.corpora = dict.fromkeys(source.train.corpora, "another")
    checkpointer = Checkpointer(
        Path(run), config, engine, spec, source, RankEnvironment(0, 1, 0), lock=None, events=None
    )
    with pytest.raises(UserError) as caught:
        checkpointer.restore()
    return str(caught.value), len(engine.counts)


def test_ranks_that_do_not_divide_the_lanes_learn_what_one_learns(corpus):
    one, three = (run_ranks(ranks, learned, str(corpus), ranks, 2) for ranks in (1, 3))
    assert all(losses == one[0][0] for losses, _ in three)
    for table in (0, 1):
        assert (whole(one, table) == whole(three, table)).all()


def test_it_learns(run):
    begun = next(line["loss"] for line in read_metrics(run) if "loss" in line)
    assert last(run, "loss") < begun / 5
    assert last(run, "validation/loss") < begun / 2


def test_held_out_pairs_are_weighed_by_what_was_counted_of_them(corpus):
    """Of vectors that know nothing, so that only counts and weights are left."""
    [(found, wanted)] = run_ranks(1, of_nothing, str(corpus))
    assert found == pytest.approx(wanted, rel=1e-5)


def of_nothing(corpus: str) -> tuple[float, float]:
    engine = engine_of(corpus)
    for table in (engine._words, engine._contexts):
        table.flat[:, :17] = 0.0
    counts, share = engine.held_out.of_step(0).counts, engine.held_out.unit / engine.pairs.unit
    assert share < 0.5
    weights = np.minimum(1.0, (counts * share / 20) ** 0.75)
    return engine.evaluate([0]).loss, float((weights * np.log(counts) ** 2).mean())


def test_gensim_reads_what_is_exported(run, tmp_path):
    gensim = pytest.importorskip("gensim")
    said = CliRunner().invoke(main, ["export", "words", str(run), str(tmp_path / "g.txt"), "--format", "glove"])
    assert said.exit_code == 0, said.output
    assert "no_header=True" in said.output
    theirs = gensim.models.KeyedVectors.load_word2vec_format(str(tmp_path / "g.txt"), no_header=True)
    ours, checkpoint = load_words(run), open_checkpoint(run)
    assert theirs.index_to_key == [*ours.words]
    assert (theirs.vectors == ours.vectors).all()
    sums = sum(table.reshape(-1, 34)[:, :16].numpy() for table in checkpoint.weights().values())
    assert (sums == ours.vector("rapid")).all(axis=1).sum() == 1
    with pytest.raises(UserError, match="glove has no rows for pieces of words"):
        write(checkpoint, tmp_path / "bin", "fasttext-bin")


def test_what_the_text_cannot_give_is_told_and_what_is_no_number_ends_the_run(corpus):
    epochs, rare, diverged, overshot = run_ranks(1, refused, str(corpus))[0]
    assert epochs.startswith("train.steps (40) is more than the ")
    assert "pairs are read 1 time (data.epochs)" in epochs
    assert "of the corpora's 0 come as often as 100,000 times" in rare
    assert diverged.startswith("step 1 has a loss of nan, where vectors that know nothing have ")
    # Numbers stay finite there.
    assert "and was not saved: lower optimizer.lr" in overshot


def refused(corpus: str) -> list[str]:
    told = []
    for more in ("data.epochs=1", "objective={glove: {min_count: 100000}}"):
        with pytest.raises(UserError) as caught:
            engine_of(corpus, more)
        told.append(str(caught.value))
    engine = engine_of(corpus)
    engine._words.flat[:, 0] = np.nan
    with pytest.raises(DivergedError) as ended:
        engine.step([], step=0, lr=0.05)
    told.append(str(ended.value))
    engine.fill()

    def run() -> None:
        for step in range(4):
            engine.step([], step=step, lr=5.0)

    with pytest.raises(DivergedError) as ended:
        run()
    assert np.isfinite(engine._words.flat).all()
    return [*told, str(ended.value)]


def test_words_of_several_corpora_are_counted_alike_by_any_number_of_ranks(corpus, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    fingerprint = load_tokenizer(corpus / "tokenizer").fingerprint
    for seed, folder in enumerate((one, two)):
        tiny_corpus(folder, vocabulary=200, seed=seed, sentences=False, words=False, fingerprint=fingerprint)
        shutil.copytree(corpus / "tokenizer", folder / "tokenizer")
    corpora, seen = RunCorpora(load(CONFIG, settings("unused", one, f"data.mix={{{one}: 1, {two}: 0.3}}"))), []

    def noted(counts: np.ndarray) -> np.ndarray:
        seen.append(counts)
        return counts

    corpora.word_counts(200, 0, 2, noted)
    counts = corpora.word_counts(200, 1, 2, lambda mine: mine + seen[0])
    assert (counts == corpora.word_counts(200, 0, 1, lambda all_: all_)).all()
    assert counts.sum() == pytest.approx(corpora.tokens("train"), rel=0.02)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("optimizer.name=sgd", r"optimizer.name \(sgd\) must be adagrad for glove"),
        ("optimizer.decay=linear", "optimizer.decay is not used by glove"),
        ("optimizer.initial_accumulator=0", r"optimizer.initial_accumulator \(0.0\) must be above 0 for glove"),
        ("data.dupe_factor=2", "data.dupe_factor is not used by glove"),
        ("data.document_mask=false", "data.document_mask must be true for glove"),
        ("objective=skip-gram", r"objective \(skip-gram\) does not fit glove"),
        ("layout.tensor=2", r"layout.tensor \(2\) is not used by glove"),
    ],
)
def test_what_it_cannot_honor_is_refused(more, told):
    with pytest.raises(UserError, match=told):
        load(CONFIG, settings("unused", "corpus", more))
