"""The whole life of the tiny config of each family of word vectors: trained on real text, killed, gone on with on two
processes, asked for neighbors, exported, and read by the libraries that people read such files with."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import megaptm
from megaptm.commands.evaluate import evaluate
from megaptm.commands.export import words
from megaptm.families.words import WORDS
from megaptm.track import read_metrics
from megaptm.words.vectors import WordVectors
from tests.drills.lives import THREADS, command, killed_half_way, spending
from tests.drills.program import checkpoints, finish, resumed_at

gensim = pytest.importorskip("gensim")
pytestmark = [pytest.mark.drill, pytest.mark.timeout(1800)]

# Of two rows a step, so that two processes can divide it; of GloVe, which needs no more text than it has, shorter ones.
TWO_ROWS = {"glove": ("train.batch=2", "data.sequence=100_000")}
FORMATS = {"glove": "glove", "fasttext": "fasttext-vec"}
"""Family -> its usual format, where it is not word2vec's."""


@dataclass(frozen=True)
class WordLife:
    """A run that has come to its end."""

    family: str
    run: Path
    validations: list[float]
    """Held-out losses, in order of steps, each once."""
    vectors: WordVectors


@pytest.fixture(scope="module", params=WORDS)
def life(request: pytest.FixtureRequest, documented_corpora: Callable[[str], Path]) -> WordLife:
    family = request.param
    folder = documented_corpora(family)
    run = folder / "runs" / f"{family}-tiny"
    with pytest.MonkeyPatch.context() as patch, spending(request.config, family) as spent:
        patch.chdir(folder)  # where a config's corpora and runs are
        spent.cpu += killed_half_way(family, run, *TWO_ROWS.get(family, ("train.batch=2",)))
        done = finish("train", str(run), "layout.data=2", THREADS)
        assert done.returncode == 0, done.stdout + done.stderr
    measured = {one["step"]: one["validation/loss"] for one in read_metrics(run) if "validation/loss" in one}
    return WordLife(family, run, [*measured.values()], megaptm.load_words(run))


def test_it_was_killed_and_went_on(life: WordLife) -> None:
    assert len(resumed_at(life.run)) == 1
    assert 0 < resumed_at(life.run)[0] < checkpoints(life.run)[-1]


def test_it_learns_on_held_out_text(life: WordLife) -> None:
    assert len(life.validations) > 1
    assert life.validations[-1] < life.validations[0]


def test_words_of_a_kind_are_near_each_other(life: WordLife) -> None:
    """Digits are nearer to digits than words by chance are to each other."""
    digits = [digit for digit in "0123456789" if digit in life.vectors.rows]
    assert len(digits) > 5

    def alike(some: list[str]) -> float:
        directions = life.vectors.directions[[life.vectors.rows[word] for word in some]]
        cosines = directions @ directions.T
        return float((cosines.sum() - len(some)) / (len(some) * (len(some) - 1)))

    drawn = np.random.default_rng(0).choice(life.vectors.words[:2000], 100, replace=False)
    assert alike(digits) > alike(drawn.tolist()) + 0.1


def test_what_is_near_is_told(life: WordLife) -> None:
    told = json.loads(command(evaluate, str(life.run), "--word", "self", "--json"))
    assert [*told["nearest"]["self"]] == [word for word, _ in life.vectors.nearest("self")]


def test_gensim_reads_what_is_exported(life: WordLife, tmp_path: Path) -> None:
    file, format_ = tmp_path / "vectors.txt", FORMATS.get(life.family, "word2vec")
    command(words, str(life.run), str(file), "--format", format_)
    theirs = gensim.models.KeyedVectors.load_word2vec_format(str(file), no_header=format_ == "glove")
    assert theirs.index_to_key == [*life.vectors.words]
    np.testing.assert_allclose(theirs.vectors, life.vectors.vectors, rtol=1e-5, atol=1e-6)
    said = [word for word, _ in theirs.most_similar("self")]
    assert said == [word for word, _ in life.vectors.nearest("self")]
