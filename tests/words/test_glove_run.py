"""GloVe from text to vectors: bit-identical on any number of ranks, and read by gensim."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from megaptm.__main__ import main
from megaptm.config import load_config, resolve_spec
from megaptm.errors import UserError
from megaptm.families.word_vectors.export import export_word_vectors as write
from megaptm.families.word_vectors.pair_engine import PairEngine
from megaptm.families.word_vectors.pair_source import PairSource
from megaptm.families.word_vectors.vectors import load_words
from megaptm.parallel.step_result import DivergedError
from megaptm.run.checkpoint import open_checkpoint
from megaptm.run.corpora import RunCorpora
from megaptm.run.rank import RankEnvironment
from megaptm.tokenizers import load_tokenizer
from megaptm.track.journal import read_metrics
from megaptm.train.checkpointer import Checkpointer
from tests.data.corpora import tiny_corpus
from tests.forked import megaptm
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
    """Run whose first half is on one rank and whose second half is on two."""
    folder = tmp_path_factory.mktemp("runs") / "planted"
    megaptm("train", CONFIG, *settings(folder, corpus, "train.stop_at=20"), code=75)
    megaptm("train", CONFIG, *settings(folder, corpus, "layout.data=2"))
    return folder


def read_metric(run: Path, name: str) -> list[float]:
    return [line[name] for line in read_metrics(run) if name in line]


def build_engine(corpus: str, *more: str) -> PairEngine:
    config = load_config(CONFIG, settings("unused", corpus, *more))
    corpora = RunCorpora(config)
    engine = PairEngine(replace(resolve_spec(config), vocabulary=corpora.tokenizer.vocabulary), config, corpora)
    engine.count_words_and_pairs()
    engine.init_weights()
    return engine


def train_steps(corpus: str, ranks: int, steps: int):
    """Return the losses of the steps and the held-out loss, and this rank's part of both tables: row ids and rows."""
    engine = build_engine(corpus, f"layout.data={ranks}")
    losses = [engine.train_step([], step=step, lr=0.05).loss for step in range(steps)]
    tables = [(table.row_ids(), table.flat.copy()) for table in (engine._words, engine._contexts)]
    return [*losses, engine.evaluate([0]).loss], tables


def join_table(results, table: int) -> np.ndarray:
    rows = {number: row for _, tables in results for number, row in zip(*tables[table], strict=True)}
    return np.stack([rows[number] for number in range(len(rows))])


def test_resume_on_two_ranks_is_bit_identical(run, corpus):
    one_rank = run_ranks(1, train_steps, str(corpus), 1, STEPS)
    weights = open_checkpoint(run).weights()
    for table, name in enumerate(("word", "context")):
        assert (join_table(one_rank, table) == weights[name].reshape(-1, 34).numpy()).all()
    assert read_metric(run, "validation/loss")[-1] == one_rank[0][0][-1]


def test_changed_corpus_is_rejected_before_counting(run, corpus):
    [(message, num_counted)] = run_ranks(1, resume_with_other_text, str(run), str(corpus))
    assert "was rebuilt after" in message
    assert num_counted == 0


def resume_with_other_text(run: str, corpus: str) -> tuple[str, int]:
    config = load_config(CONFIG, settings(run, corpus))
    corpora = RunCorpora(config)
    spec = replace(resolve_spec(config), vocabulary=corpora.tokenizer.vocabulary)
    source = PairSource(config, corpora, engine := PairEngine(spec, config, corpora))
    source.train.corpora = dict.fromkeys(source.train.corpora, "another")
    checkpointer = Checkpointer(
        Path(run), config, engine, spec, source, RankEnvironment(0, 1, 0), lock=None, events=None, callbacks=None
    )
    with pytest.raises(UserError) as caught:
        checkpointer.restore()
    return str(caught.value), len(engine.counts)


def test_three_ranks_are_bit_identical_to_one(corpus):
    """3 does not divide the 128 lanes."""
    single, three = (run_ranks(ranks, train_steps, str(corpus), ranks, 2) for ranks in (1, 3))
    assert [losses for losses, _ in three] == [single[0][0]] * 3
    assert (join_table(single, 0) == join_table(three, 0)).all()
    assert (join_table(single, 1) == join_table(three, 1)).all()


def test_glove_loss_decreases(run):
    losses = read_metric(run, "loss")
    assert losses[-1] < losses[0] / 5
    assert read_metric(run, "validation/loss")[-1] < losses[0] / 2


def test_held_out_pairs_are_weighted_by_their_own_counts(corpus):
    """With zero vectors, the loss depends on counts and weights only."""
    [(loss, expected)] = run_ranks(1, loss_of_zero_vectors, str(corpus))
    assert loss == pytest.approx(expected, rel=1e-5)


def loss_of_zero_vectors(corpus: str) -> tuple[float, float]:
    engine = build_engine(corpus)
    for table in (engine._words, engine._contexts):
        table.flat[:, :17] = 0.0
    counts, share = engine.held_out.select(0).counts, engine.held_out.unit / engine.pairs.unit
    assert share < 0.5
    weights = np.minimum(1.0, (counts * share / 20) ** 0.75)
    return engine.evaluate([0]).loss, float((weights * np.log(counts) ** 2).mean())


def test_gensim_reads_export(run, tmp_path):
    gensim = pytest.importorskip("gensim")
    result = CliRunner().invoke(main, ["export", "words", str(run), str(tmp_path / "g.txt"), "--format", "glove"])
    assert result.exit_code == 0, result.output
    assert "no_header=True" in result.output
    reference = gensim.models.KeyedVectors.load_word2vec_format(str(tmp_path / "g.txt"), no_header=True)
    vectors, checkpoint = load_words(run), open_checkpoint(run)
    assert reference.index_to_key == [*vectors.words]
    assert (reference.vectors == vectors.vectors).all()
    sums = sum(table.reshape(-1, 34)[:, :16].numpy() for table in checkpoint.weights().values())
    assert (sums == vectors.vector("rapid")).all(axis=1).sum() == 1
    with pytest.raises(UserError, match="glove has no subwords"):
        write(checkpoint, tmp_path / "bin", "fasttext-bin")


def test_too_little_text_and_divergence_are_errors(corpus):
    too_many_steps, too_rare, nan_loss, divergence = run_ranks(1, collect_errors, str(corpus))[0]
    assert too_many_steps.startswith("train.steps (40) is too large: data.epochs (1) of ")
    assert "In the corpora, 0 occur 100,000 times or more" in too_rare
    assert nan_loss.startswith("step 1 has a loss of nan, but untrained vectors have ")
    assert "The step was not saved: lower optimizer.lr" in divergence


def collect_errors(corpus: str) -> list[str]:
    messages = []
    for option in ("data.epochs=1", "objective={glove: {min_count: 100000}}"):
        with pytest.raises(UserError) as caught:
            build_engine(corpus, option)
        messages.append(str(caught.value))
    engine = build_engine(corpus)
    engine._words.flat[:, 0] = np.nan
    with pytest.raises(DivergedError) as nan_error:
        engine.train_step([], step=0, lr=0.05)
    engine.init_weights()

    def train_at_high_rate() -> None:
        for step in range(4):
            engine.train_step([], step=step, lr=5.0)

    with pytest.raises(DivergedError) as divergence_error:
        train_at_high_rate()
    assert np.isfinite(engine._words.flat).all()
    return [*messages, str(nan_error.value), str(divergence_error.value)]


def test_word_counts_of_several_corpora_do_not_depend_on_ranks(corpus, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    fingerprint = load_tokenizer(corpus / "tokenizer").fingerprint
    for seed, folder in enumerate((first, second)):
        tiny_corpus(folder, vocabulary=200, seed=seed, sentences=False, words=False, fingerprint=fingerprint)
        shutil.copytree(corpus / "tokenizer", folder / "tokenizer")
    corpora = RunCorpora(load_config(CONFIG, settings("unused", first, f"data.mix={{{first}: 1, {second}: 0.3}}")))
    first_rank_counts = []
    corpora.word_counts(200, 0, 2, lambda counts: first_rank_counts.append(counts) or counts)
    counts = corpora.word_counts(200, 1, 2, lambda counts: counts + first_rank_counts[0])
    assert (counts == corpora.word_counts(200, 0, 1, lambda counts: counts)).all()
    assert counts.sum() == pytest.approx(corpora.tokens("train"), rel=0.02)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("optimizer.name=sgd", r"optimizer.name \(sgd\) must be adagrad for glove"),
        ("optimizer.decay=linear", "optimizer.decay is not used by glove"),
        ("optimizer.initial_accumulator=0", r"optimizer.initial_accumulator \(0.0\) must be above 0 for glove"),
        ("data.dupe_factor=2", "data.dupe_factor is not used by glove"),
        ("data.document_mask=false", "data.document_mask must be true for glove"),
        ("objective=skip-gram", r"objective \(skip-gram\) does not fit glove"),
        ("layout.tensor=2", r"layout.tensor \(2\) is not used by glove"),
        ("layout.full_sharding=true", r"layout.full_sharding \(True\) is not used by glove"),
    ],
)
def test_unsupported_config_is_rejected(option, message):
    with pytest.raises(UserError, match=message):
        load_config(CONFIG, settings("unused", "corpus", option))
