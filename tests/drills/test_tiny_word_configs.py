"""Tiny config of each family of word vectors: trained on real text, killed, resumed on two processes, evaluated,
exported, and loaded in gensim."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import megaptm
from megaptm.commands.evaluate import evaluate_command
from megaptm.families import LAYERLESS
from megaptm.families.word_vectors.commands import export_command
from megaptm.families.word_vectors.vectors import WordVectors
from megaptm.track import read_metrics
from tests.drills.killed_runs import THREADS, command, kill_half_way, measure_cost
from tests.drills.program import checkpoints, finish, resumed_at

gensim = pytest.importorskip("gensim")
pytestmark = [pytest.mark.drill, pytest.mark.timeout(1800)]

# Two samples per step, so that two processes can divide it. GloVe's text needs shorter ones.
TWO_SAMPLES = {"glove": ("train.batch=2", "data.sequence=100_000")}
FORMATS = {"glove": "glove", "fasttext": "fasttext-vec"}
"""Family -> usual format of its files, if it is not word2vec's."""


@dataclass(frozen=True)
class FinishedWordRun:
    """Finished run."""

    family: str
    run: Path
    validations: list[float]
    """One held-out loss per validated step, in order."""
    vectors: WordVectors


@pytest.fixture(scope="module", params=LAYERLESS)
def finished(request: pytest.FixtureRequest, documented_corpora: Callable[[str], Path]) -> FinishedWordRun:
    family = request.param
    folder = documented_corpora(family)
    run = folder / "runs" / f"{family}-tiny"
    with pytest.MonkeyPatch.context() as patch, measure_cost(request.config, family) as spent:
        patch.chdir(folder)  # the working directory of a config's relative paths
        spent.cpu += kill_half_way(family, run, *TWO_SAMPLES.get(family, ("train.batch=2",)))
        done = finish("train", str(run), "layout.data=2", THREADS)
        assert done.returncode == 0, done.stdout + done.stderr
    measured = {
        record["step"]: record["validation/loss"] for record in read_metrics(run) if "validation/loss" in record
    }
    return FinishedWordRun(family, run, [*measured.values()], megaptm.load_words(run))


def test_run_was_killed_and_resumed(finished: FinishedWordRun) -> None:
    assert len(resumed_at(finished.run)) == 1
    assert 0 < resumed_at(finished.run)[0] < checkpoints(finished.run)[-1]


def test_validation_loss_decreases(finished: FinishedWordRun) -> None:
    assert len(finished.validations) > 1
    assert finished.validations[-1] < finished.validations[0]


def test_digits_are_near_each_other(finished: FinishedWordRun) -> None:
    """Digits are nearer to digits than random words are to each other."""
    digits = [digit for digit in "0123456789" if digit in finished.vectors.rows]
    assert len(digits) > 5

    def mean_cosine(sample: list[str]) -> float:
        directions = finished.vectors.directions[[finished.vectors.rows[word] for word in sample]]
        cosines = directions @ directions.T
        return float((cosines.sum() - len(sample)) / (len(sample) * (len(sample) - 1)))

    random_words = np.random.default_rng(0).choice(finished.vectors.words[:2000], 100, replace=False)
    assert mean_cosine(digits) > mean_cosine(random_words.tolist()) + 0.1


def test_evaluate_reports_neighbors(finished: FinishedWordRun) -> None:
    report = json.loads(command(evaluate_command, str(finished.run), "--word", "self", "--json"))
    assert [*report["nearest"]["self"]] == [word for word, _ in finished.vectors.nearest("self")]


def test_gensim_reads_export(finished: FinishedWordRun, tmp_path: Path) -> None:
    file, format_ = tmp_path / "vectors.txt", FORMATS.get(finished.family, "word2vec")
    command(export_command, str(finished.run), str(file), "--format", format_)
    reference = gensim.models.KeyedVectors.load_word2vec_format(str(file), no_header=format_ == "glove")
    assert reference.index_to_key == [*finished.vectors.words]
    np.testing.assert_allclose(reference.vectors, finished.vectors.vectors, rtol=1e-5, atol=1e-6)
    neighbors = [word for word, _ in reference.most_similar("self")]
    assert neighbors == [word for word, _ in finished.vectors.nearest("self")]
