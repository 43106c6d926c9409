"""fastText from text to its own file, which fastText's library and gensim read with the same vectors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from megaptm.__main__ import main
from megaptm.errors import UserError
from megaptm.launch.local import train
from megaptm.run.checkpoint import open_checkpoint
from megaptm.words.export import export as write
from megaptm.words.vectors import load_words
from tests.words.test_words_run import CONFIGS

fasttext = pytest.importorskip("fasttext")
gensim = pytest.importorskip("gensim")


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "planted"
    usual = [
        *(f"run={folder}", f"data.mix={{{corpus}: 1}}", "data.sequence=2000", "model.width=24", "track.enabled=false"),
        *("train.validate_batches=1", "data.workers=0", "objective={skip-gram: {subsample: 0, window: 6}}"),
        *("model.buckets=500", "train.batch=2", "train.steps=60", "layout.data=2"),
    ]
    assert train(CONFIGS / "fasttext/tiny.yaml", [*usual, "train.stop_at=30"]) == 75
    assert train(CONFIGS / "fasttext/tiny.yaml", usual) == 0
    return folder


def export(run, file, format_):
    said = CliRunner().invoke(main, ["export", "words", str(run), str(file), "--format", format_])
    assert said.exit_code == 0, said.output
    return said.output


UNSEEN = ("land99", "riverof77", "日本")


def test_the_released_library_reads_the_file(run, tmp_path):
    assert "fasttext.load_model(" in export(run, tmp_path / "model.bin", "fasttext-bin")
    ours, theirs = load_words(run), fasttext.load_model(str(tmp_path / "model.bin"))
    assert theirs.get_words() == [*ours.words]
    for word in ("land2", "rapid", *UNSEEN):
        assert np.abs(theirs.get_word_vector(word) - ours.vector(word)).max() < 1e-6
    neighbors = [word for _, word in theirs.get_nearest_neighbors("land2")]
    assert neighbors == [word for word, _ in ours.nearest("land2")]
    settings = theirs.f.getArgs()
    assert (settings.dim, settings.ws, settings.bucket, settings.minn, settings.maxn) == (24, 6, 500, 3, 6)


def test_the_file_says_that_words_were_told_from_all(run, tmp_path):
    checkpoint = open_checkpoint(run)
    config = checkpoint.config.model_copy(update={"objective": {"skip-gram": {"output": "softmax"}}})
    write(replace(checkpoint, config=config), tmp_path / "model.bin", "fasttext-bin")
    theirs = fasttext.load_model(str(tmp_path / "model.bin"))
    assert theirs.f.getArgs().loss.name == "softmax"
    assert np.abs(theirs.get_word_vector("land2") - load_words(run).vector("land2")).max() < 1e-6


def test_gensim_reads_the_file(run, tmp_path):
    export(run, tmp_path / "model.bin", "fasttext-bin")
    ours, theirs = load_words(run), gensim.models.fasttext.load_facebook_model(str(tmp_path / "model.bin"))
    for word in ("land2", "rapid", *UNSEEN):
        assert np.abs(theirs.wv[word] - ours.vector(word)).max() < 1e-6


def test_the_text_format_has_the_means(run, tmp_path):
    export(run, tmp_path / "model.vec", "fasttext-vec")
    theirs = gensim.models.KeyedVectors.load_word2vec_format(str(tmp_path / "model.vec"))
    assert theirs.index_to_key == [*load_words(run).words]
    assert np.abs(theirs.vectors - load_words(run).vectors).max() < 1e-7


def test_a_word_that_never_came_is_near_those_that_are_written_like_it(run):
    vectors = load_words(run)
    assert "riverof77" not in vectors.number
    assert np.isfinite(vectors.vector("riverof77")).all()
    assert all(word.startswith("riverof") for word, _ in vectors.nearest("riverof77", 3))


def test_what_the_file_cannot_hold_is_told(run, tmp_path):
    checkpoint = open_checkpoint(run)
    tree = checkpoint.config.model_copy(update={"objective": {"skip-gram": {"output": "hierarchical-softmax"}}})
    with pytest.raises(UserError, match="fastText builds another tree"):
        write(replace(checkpoint, config=tree), tmp_path / "tree.bin", "fasttext-bin")
    model = checkpoint.config.model.model_copy(update={"family": "word2vec", "buckets": None, "ngrams": None})
    plain = checkpoint.config.model_copy(update={"model": model})
    with pytest.raises(UserError, match="word2vec has no rows for pieces of words"):
        write(replace(checkpoint, config=plain), tmp_path / "plain.bin", "fasttext-bin")
    assert [*tmp_path.iterdir()] == []
