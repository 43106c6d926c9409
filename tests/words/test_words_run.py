"""From text to neighbors: trained, stopped, continued on more ranks, exported, read by gensim."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors
from click.testing import CliRunner

from megaptm.__main__ import main
from megaptm.errors import UserError
from megaptm.launch.local import train
from megaptm.words.export import FORMATS
from megaptm.words.vectors import WordVectors, load_words, read_questions
from tests.words import planted
from tests.words.gensims import gensims, neighbors, shared, text_of

gensim = pytest.importorskip("gensim")

CONFIGS = Path(__file__).parents[2] / "configs"


def settings(run: Path, corpus: Path, *more: str) -> tuple[Path, list[str]]:
    usual = [
        *(f"run={run}", f"data.mix={{{corpus}: 1}}", "data.sequence=2000", "model.width=24", "track.enabled=false"),
        *("train.validate_batches=1", "data.workers=0", "objective={skip-gram: {subsample: 0, window: 6}}"),
    ]
    return CONFIGS / "word2vec/tiny.yaml", [*usual, *more]


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    """Half of it on one rank, half on two."""
    folder = tmp_path_factory.mktemp("runs") / "planted"
    config, usual = settings(folder, corpus, "train.batch=2", "train.steps=100")
    assert train(config, [*usual, "train.stop_at=50"]) == 75
    assert train(config, [*usual, "layout.data=2"]) == 0
    return folder


def test_planted_synonyms_are_each_others_nearest(run):
    vectors = load_words(run)
    for first, second in planted.SYNONYMS.items():
        assert vectors.nearest(first, 1)[0][0] == second
        assert vectors.nearest(second, 1)[0][0] == first


def test_planted_analogies_are_answered(run):
    right, known = load_words(run).accuracy(planted.questions())
    assert known == len(planted.questions())
    assert right / known > 0.8


def test_two_ranks_learn_what_one_learns(run, corpus, tmp_path):
    config, usual = settings(tmp_path / "one", corpus, "train.batch=2", "train.steps=100")
    assert train(config, usual) == 0
    one, two = load_words(tmp_path / "one"), load_words(run)
    assert [*one.words] == [*two.words]
    assert (one.vectors == two.vectors).all()


def test_words_have_the_neighbors_that_gensim_gives_them(run):
    """Of the same text, as often and by the same settings: of five neighbors as many are common as of two of gensim's
    own runs, but for one in ten."""
    text, ours = text_of(run), load_words(run)
    theirs = [gensims(text, seed, vector_size=24, window=6, alpha=0.05, epochs=7, sample=0) for seed in (1, 2)]
    frequent = [*ours.words[:40]]
    mine = {word: {near for near, _ in ours.nearest(word, 5)} for word in frequent}
    common, at_best = shared(mine, theirs[0], 5), shared(neighbors(theirs[1], frequent, 5), theirs[0], 5)
    assert common > at_best - 0.1
    assert common > 0.5, "chance would have 5 of all 77 others"


@pytest.mark.parametrize("word", ["", "a b", "a\nb", "a\0b", "a\u00a0b"])
def test_a_word_that_no_line_can_say_is_refused(word):
    vectors = WordVectors([word], np.array([1]), np.ones((1, 2), np.float32))
    for format_ in ("word2vec", "word2vec-binary", "glove"):
        with pytest.raises(UserError, match="cannot be told from others in a file of this format"):
            list(FORMATS[format_](vectors))


@pytest.mark.parametrize("format_", ["word2vec", "word2vec-binary"])
def test_gensim_reads_what_is_exported(run, tmp_path, format_):
    file, vectors = tmp_path / "new/words", load_words(run)
    said = CliRunner().invoke(main, ["export", "words", str(run), str(file), "--format", format_])
    assert said.exit_code == 0, said.output
    assert "load_word2vec_format" in said.output
    theirs = gensim.models.KeyedVectors.load_word2vec_format(str(file), binary=format_.endswith("binary"))
    assert theirs.index_to_key == [*vectors.words]
    assert (theirs.vectors == vectors.vectors).all()
    for word in ("land2", "rapid"):
        assert [name for name, _ in theirs.most_similar(word)] == [name for name, _ in vectors.nearest(word)]
    ours = vectors.analogy("land0", "riverof0", "land3")[0]
    assert theirs.most_similar(positive=["riverof0", "land3"], negative=["land0"])[0] == pytest.approx(ours, abs=1e-5)


def test_safetensors_have_vectors_counts_and_words(run, tmp_path):
    assert (
        CliRunner()
        .invoke(main, ["export", "words", str(run), str(tmp_path / "w"), "--format", "safetensors"])
        .exit_code
        == 0
    )
    vectors = load_words(run)
    with safetensors.safe_open(tmp_path / "w", "numpy") as file:
        assert json.loads(file.metadata()["words"]) == [*vectors.words]
        assert (file.get_tensor("vectors") == vectors.vectors).all()
        counts = file.get_tensor("counts")
    assert (counts == vectors.counts).all()
    assert (np.diff(counts) <= 0).all()
    assert counts.min() >= 5


def test_the_command_line_says_what_is_near_and_answers_analogies(run, tmp_path):
    asked = tmp_path / "questions.txt"
    asked.write_text(": rivers\nland0 riverof0 land3 riverof3\nland0 riverof0 land3 nowhere\n")
    said = CliRunner().invoke(main, ["evaluate", str(run), "--word", "quick", "--analogies", str(asked), "--json"])
    found = json.loads(said.output)
    assert next(iter(found["nearest"]["quick"])) == "rapid"
    assert found["analogies"] == {"right": 1, "known": 1, "asked": 2}
    plain = CliRunner().invoke(main, ["evaluate", str(run), "--word", "quick", "--analogies", str(asked)])
    assert plain.output.startswith("quick: rapid ")
    assert "1 of 1 analogies (100.0%); 1 more have words without a vector" in plain.output
    frequent = json.loads(CliRunner().invoke(main, ["evaluate", str(run), "--json"]).output)
    assert len(frequent["nearest"]) == 5
    assert frequent["analogies"] is None


def test_what_cannot_be_asked_is_told(run, tmp_path):
    with pytest.raises(UserError, match=r"lend2 is none of the .* words that have a vector; did you mean land2"):
        load_words(run).nearest("lend2")
    (tmp_path / "three").write_text("a b c\n")
    with pytest.raises(UserError, match="line 1: an analogy is four words, not 3"):
        read_questions(tmp_path / "three")
    for command in (["generate", str(run), "--prompt", "x"], ["export", "hf", str(run), str(tmp_path / "hf")]):
        refused = CliRunner().invoke(main, command)
        assert "word2vec is a word-vector family, which has no layers" in refused.output


def test_neighbors_are_by_direction():
    vectors = WordVectors(
        ["a", "b", "c", "d"], np.array([4, 3, 2, 1]), np.array([[1, 0], [9, 1], [0, 2], [-1, 0]], np.float32)
    )
    assert [word for word, _ in vectors.nearest("a", 9)] == ["b", "c", "d"]
    assert vectors.nearest("a", 1)[0][1] == pytest.approx(9 / np.sqrt(82))
