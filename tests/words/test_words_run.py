"""Word2vec from text to neighbors: trained, resumed on more ranks, exported, read by gensim."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors
from click.testing import CliRunner

from megaptm.__main__ import main
from megaptm.errors import UserError
from megaptm.families.word_vectors.export import FORMATS
from megaptm.families.word_vectors.vectors import WordVectors, load_words, read_analogies
from tests.forked import megaptm
from tests.words import planted
from tests.words.gensims import neighbors, read_text, shared_neighbors, train_gensim

gensim = pytest.importorskip("gensim")

CONFIGS = Path(__file__).parents[2] / "configs"


def settings(run: Path, corpus: Path, *more: str) -> list[str]:
    return [
        str(CONFIGS / "word2vec/tiny.yaml"),
        *(f"run={run}", f"data.mix={{{corpus}: 1}}", "data.sequence=2000", "model.width=24", "track.enabled=false"),
        *("train.validate_batches=1", "data.workers=0", "objective={skip-gram: {subsample: 0, window: 6}}"),
        *more,
    ]


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    """Run whose first half is on one rank and whose second half is on two."""
    folder = tmp_path_factory.mktemp("runs") / "planted"
    options = settings(folder, corpus, "train.batch=2", "train.steps=100")
    megaptm("train", *options, "train.stop_at=50", code=75)
    megaptm("train", *options, "layout.data=2")
    return folder


def test_planted_synonyms_are_nearest_neighbors(run):
    vectors = load_words(run)
    for first, second in planted.SYNONYMS.items():
        assert vectors.nearest(first, 1)[0][0] == second
        assert vectors.nearest(second, 1)[0][0] == first


def test_planted_analogies_are_solved(run):
    solved, known = load_words(run).count_solved_analogies(planted.questions())
    assert known == len(planted.questions())
    assert solved / known > 0.8


def test_run_on_two_ranks_is_bit_identical(run, corpus, tmp_path):
    megaptm("train", *settings(tmp_path / "one", corpus, "train.batch=2", "train.steps=100"))
    one_rank, two_ranks = load_words(tmp_path / "one"), load_words(run)
    assert [*one_rank.words] == [*two_ranks.words]
    assert (one_rank.vectors == two_ranks.vectors).all()


def test_neighbors_match_gensim(run):
    """With the same text and settings, gensim shares as many neighbors with this run as with another of its seeds, up
    to 0.1. Chance is 5 of 77."""
    text, vectors = read_text(run), load_words(run)
    settings = {"vector_size": 24, "window": 6, "alpha": 0.05, "epochs": 7, "sample": 0}
    first, second = (train_gensim(text, seed, **settings) for seed in (1, 2))
    frequent = [*vectors.words[:40]]
    nearest = {word: {near for near, _ in vectors.nearest(word, 5)} for word in frequent}
    share = shared_neighbors(nearest, first, 5)
    assert share > shared_neighbors(neighbors(second, frequent, 5), first, 5) - 0.1
    assert share > 0.5


@pytest.mark.parametrize("word", ["", "a b", "a\nb", "a\0b", "a\u00a0b"])
@pytest.mark.parametrize("format_", ["word2vec", "word2vec-binary", "glove"])
def test_words_with_separators_are_rejected(word, format_):
    vectors = WordVectors([word], np.array([1]), np.ones((1, 2), np.float32))
    with pytest.raises(UserError, match="contains a separator of this file format"):
        list(FORMATS[format_](vectors))


@pytest.mark.parametrize("format_", ["word2vec", "word2vec-binary"])
def test_gensim_reads_export(run, tmp_path, format_):
    file, vectors = tmp_path / "new/words", load_words(run)
    result = CliRunner().invoke(main, ["export", "words", str(run), str(file), "--format", format_])
    assert result.exit_code == 0, result.output
    assert "load_word2vec_format" in result.output
    reference = gensim.models.KeyedVectors.load_word2vec_format(str(file), binary=format_.endswith("binary"))
    assert reference.index_to_key == [*vectors.words]
    assert (reference.vectors == vectors.vectors).all()
    for word in ("land2", "rapid"):
        assert [name for name, _ in reference.most_similar(word)] == [name for name, _ in vectors.nearest(word)]
    solution = vectors.analogy("land0", "riverof0", "land3")[0]
    expected = reference.most_similar(positive=["riverof0", "land3"], negative=["land0"])[0]
    assert solution == pytest.approx(expected, abs=1e-5)


def test_safetensors_export_has_vectors_counts_and_words(run, tmp_path):
    result = CliRunner().invoke(main, ["export", "words", str(run), str(tmp_path / "w"), "--format", "safetensors"])
    assert result.exit_code == 0, result.output
    vectors = load_words(run)
    with safetensors.safe_open(tmp_path / "w", "numpy") as file:
        assert json.loads(file.metadata()["words"]) == [*vectors.words]
        assert (file.get_tensor("vectors") == vectors.vectors).all()
        counts = file.get_tensor("counts")
    assert (counts == vectors.counts).all()
    assert (np.diff(counts) <= 0).all()
    assert counts.min() >= 5


def test_evaluate_command_shows_neighbors_and_analogies(run, tmp_path):
    questions = tmp_path / "questions.txt"
    questions.write_text(": rivers\nland0 riverof0 land3 riverof3\nland0 riverof0 land3 nowhere\n")
    command = ["evaluate", str(run), "--word", "quick", "--analogies", str(questions)]
    report = json.loads(CliRunner().invoke(main, [*command, "--json"]).output)
    assert next(iter(report["nearest"]["quick"])) == "rapid"
    assert report["analogies"] == {"correct": 1, "known": 1, "total": 2}
    plain = CliRunner().invoke(main, command)
    assert plain.output.startswith("quick: rapid ")
    assert "1 of 1 analogies (100.0%); 1 more have words without a vector" in plain.output
    frequent = json.loads(CliRunner().invoke(main, ["evaluate", str(run), "--json"]).output)
    assert len(frequent["nearest"]) == 5
    assert frequent["analogies"] is None


def test_unknown_words_and_unsupported_commands_are_errors(run, tmp_path):
    with pytest.raises(UserError, match=r"lend2 is not one of the .* words with a vector: did you mean land2"):
        load_words(run).nearest("lend2")
    (tmp_path / "three").write_text("a b c\n")
    with pytest.raises(UserError, match="line 1: an analogy is four words, not 3"):
        read_analogies(tmp_path / "three")
    for command in (["generate", str(run), "--prompt", "x"], ["export", "hf", str(run), str(tmp_path / "hf")]):
        result = CliRunner().invoke(main, command)
        assert "word2vec is a family of word vectors, which has no layers" in result.output


def test_neighbors_are_sorted_by_cosine():
    vectors = WordVectors(
        ["a", "b", "c", "d"], np.array([4, 3, 2, 1]), np.array([[1, 0], [9, 1], [0, 2], [-1, 0]], np.float32)
    )
    assert [word for word, _ in vectors.nearest("a", 9)] == ["b", "c", "d"]
    assert vectors.nearest("a", 1)[0][1] == pytest.approx(9 / np.sqrt(82))
