"""fastText from text to its binary file, which fastText's library and gensim read with the same vectors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from megaptm.__main__ import main
from megaptm.errors import UserError
from megaptm.families.word_vectors.export import export_word_vectors as write
from megaptm.families.word_vectors.vectors import load_words
from megaptm.run.checkpoint import open_checkpoint
from tests.forked import megaptm
from tests.words.test_words_run import CONFIGS

fasttext = pytest.importorskip("fasttext")
gensim = pytest.importorskip("gensim")


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "planted"
    options = [
        *(f"run={folder}", f"data.mix={{{corpus}: 1}}", "data.sequence=2000", "model.width=24", "track.enabled=false"),
        *("train.validate_batches=1", "data.workers=0", "objective={skip-gram: {subsample: 0, window: 6}}"),
        *("model.buckets=500", "train.batch=2", "train.steps=60", "layout.data=2"),
    ]
    megaptm("train", CONFIGS / "fasttext/tiny.yaml", *options, "train.stop_at=30", code=75)
    megaptm("train", CONFIGS / "fasttext/tiny.yaml", *options)
    return folder


def export(run, file, format_):
    result = CliRunner().invoke(main, ["export", "words", str(run), str(file), "--format", format_])
    assert result.exit_code == 0, result.output
    return result.output


UNKNOWN_WORDS = ("land99", "riverof77", "日本")


def test_fasttext_library_reads_export(run, tmp_path):
    assert "fasttext.load_model(" in export(run, tmp_path / "model.bin", "fasttext-bin")
    vectors, reference = load_words(run), fasttext.load_model(str(tmp_path / "model.bin"))
    assert reference.get_words() == [*vectors.words]
    for word in ("land2", "rapid", *UNKNOWN_WORDS):
        assert np.abs(reference.get_word_vector(word) - vectors.vector(word)).max() < 1e-6
    neighbors = [word for _, word in reference.get_nearest_neighbors("land2")]
    assert neighbors == [word for word, _ in vectors.nearest("land2")]
    settings = reference.f.getArgs()
    assert (settings.dim, settings.ws, settings.bucket, settings.minn, settings.maxn) == (24, 6, 500, 3, 6)


def test_softmax_export_states_its_loss(run, tmp_path):
    checkpoint = open_checkpoint(run)
    config = checkpoint.config.model_copy(update={"objective": {"skip-gram": {"output": "softmax"}}})
    write(replace(checkpoint, config=config), tmp_path / "model.bin", "fasttext-bin")
    reference = fasttext.load_model(str(tmp_path / "model.bin"))
    assert reference.f.getArgs().loss.name == "softmax"
    assert np.abs(reference.get_word_vector("land2") - load_words(run).vector("land2")).max() < 1e-6


def test_gensim_reads_export(run, tmp_path):
    export(run, tmp_path / "model.bin", "fasttext-bin")
    vectors, reference = load_words(run), gensim.models.fasttext.load_facebook_model(str(tmp_path / "model.bin"))
    for word in ("land2", "rapid", *UNKNOWN_WORDS):
        assert np.abs(reference.wv[word] - vectors.vector(word)).max() < 1e-6


def test_text_export_has_mean_vectors(run, tmp_path):
    export(run, tmp_path / "model.vec", "fasttext-vec")
    reference = gensim.models.KeyedVectors.load_word2vec_format(str(tmp_path / "model.vec"))
    assert reference.index_to_key == [*load_words(run).words]
    assert np.abs(reference.vectors - load_words(run).vectors).max() < 1e-7


def test_unknown_word_is_near_words_of_similar_spelling(run):
    vectors = load_words(run)
    assert "riverof77" not in vectors.rows
    assert np.isfinite(vectors.vector("riverof77")).all()
    assert all(word.startswith("riverof") for word, _ in vectors.nearest("riverof77", 3))


def test_models_that_the_format_cannot_hold_are_rejected(run, tmp_path):
    checkpoint = open_checkpoint(run)
    tree = checkpoint.config.model_copy(update={"objective": {"skip-gram": {"output": "hierarchical-softmax"}}})
    with pytest.raises(UserError, match="fastText's files cannot hold a model with hierarchical softmax"):
        write(replace(checkpoint, config=tree), tmp_path / "tree.bin", "fasttext-bin")
    model = checkpoint.config.model.model_copy(update={"family": "word2vec", "buckets": None, "ngrams": None})
    word2vec = checkpoint.config.model_copy(update={"model": model})
    with pytest.raises(UserError, match="word2vec has no subwords"):
        write(replace(checkpoint, config=word2vec), tmp_path / "word2vec.bin", "fasttext-bin")
    assert [*tmp_path.iterdir()] == []
