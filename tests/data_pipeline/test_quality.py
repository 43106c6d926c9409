"""Quality scores: a classifier trained from examples by a command, models of fastText, functions of users."""

import math
import random

import numpy as np
import pytest
from click.testing import CliRunner

from data_pipeline.clean import run_steps
from data_pipeline.clean.quality import ScoreQuality
from data_pipeline.clean.quality_classifier import UNIT, QualityClassifier, hashed_ngrams, load_classifier
from data_pipeline.document import Document, DropCounts
from data_pipeline.train_quality import TrainingOptions, train_classifier
from megaptm.__main__ import main
from megaptm.errors import UserError
from tests.data_pipeline.clean.running import run
from tests.data_pipeline.fasttext_models import write_fasttext

COMMON = ["the", "of", "and", "a", "to", "in", "is", "that"]
KINDS = {
    "good": ["theorem", "proof", "energy", "cell", "history", "measure"],
    "other": ["buy", "cheap", "click", "login", "offer", "cookie"],
}


def text(kind: str, seed: int) -> str:
    rng = random.Random(f"{kind}{seed}")
    return " ".join(rng.choice(KINDS[kind] if rng.random() < 0.3 else COMMON) for _ in range(60))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("quality")
    for kind in KINDS:
        (root / kind).mkdir()
        for number in range(60):
            (root / kind / f"{number}.txt").write_text(text(kind, number))
    (root / "good" / "damaged.txt").write_bytes(b"proof \xff")
    return root


@pytest.fixture(scope="module")
def classifier_file(folders):
    pytest.importorskip("sklearn")
    out = folders / "web.quality"
    words = [
        "corpus",
        "train-quality",
        "--good",
        f"{folders}/good",
        "--ordinary",
        f"{folders}/other",
        "--out",
        str(out),
    ]
    result = CliRunner().invoke(main, words, catch_exceptions=False)
    assert result.exit_code == 0
    assert "scores of 12 held-out examples" in result.output
    assert "area under the ROC curve 1.0000" in result.output
    assert "dropped 1 not UTF-8 (good/damaged.txt)" in result.output
    return str(out)


def test_new_texts_are_scored_and_dropped(classifier_file):
    retained, dropped = run(ScoreQuality(classifier_file), text("good", 999), text("other", 999))
    first, second = (document.notes["quality"] for document in retained)
    assert first > 0.8 > 0.2 > second
    assert round(first, 4) == first
    assert not dropped.counts
    retained, dropped = run(ScoreQuality(classifier_file, min_score=0.5), text("good", 999), text("other", 999))
    assert [document.source for document in retained] == ["0.txt"]
    assert dropped.counts == {"score-quality: quality below 0.5": 1}


def test_the_classifier_depends_on_texts_only(folders, classifier_file):
    """Trained again, from the files in another order, it has the same weights: multiples of 2**-16."""
    files = {kind: sorted(map(str, (folders / kind).iterdir()), reverse=True) for kind in KINDS}
    again, loaded = train_classifier(files["good"], files["other"], TrainingOptions()), load_classifier(classifier_file)
    assert (again.weights == loaded.weights).all()
    assert (again.bias, again.info) == (loaded.bias, loaded.info)
    assert (loaded.weights % UNIT == 0).all()


def test_probabilities_equal_those_of_scikit_learn(folders, classifier_file):
    linear_model = pytest.importorskip("sklearn.linear_model")
    loaded = load_classifier(classifier_file)
    model = linear_model.LogisticRegression()
    model.classes_, model.intercept_ = np.array([0, 1]), np.array([loaded.bias])
    model.coef_ = loaded.weights[None].astype(float)
    for kind in KINDS:
        features = hashed_ngrams(text(kind, 5), loaded.ngrams, len(loaded.weights))
        row = np.zeros((1, len(loaded.weights)))
        row[0, features] = len(features) ** -0.5
        assert loaded.score(text(kind, 5)) == pytest.approx(model.predict_proba(row)[0, 1], abs=1e-12)


def test_text_without_words_has_score_0(classifier_file):
    assert load_classifier(classifier_file).score("... !") == 0.0


def share_of_capitals(texts):
    return [sum(character.isupper() for character in text) / len(text) for text in texts]


def no_scores(texts):
    return []


def test_functions_score_batches():
    step = ScoreQuality(f"{__name__}:share_of_capitals", note="capitals", min_score=0.25)
    retained, dropped = run(step, "ABcd", "abcd", "ABCD")
    assert [document.notes for document in retained] == [{"capitals": 0.5}, {"capitals": 1.0}]
    assert dropped.counts == {"score-quality: capitals below 0.25": 1}
    assert step.input_files() == (__file__,)


def test_a_function_must_score_each_text():
    with pytest.raises(UserError, match=r"score-quality failed .*no_scores must return a finite number for each of 1"):
        list(run_steps([ScoreQuality(f"{__name__}:no_scores")], [Document("a", "0")], DropCounts()))


def test_fasttext_models_score_by_label(tmp_path):
    pytest.importorskip("fasttext")
    model = write_fasttext(
        tmp_path / "model.bin", {"proof": 1.0, "buy": -1.0, "the": 0.0}, {"good": 3.0, "other": -1.0}
    )
    path = str(model)
    retained, _ = run(ScoreQuality(path, label="__label__good"), "the proof\nproof", "buy the buy")
    scores = [document.notes["quality"] for document in retained]
    assert scores == [round(1 / (1 + math.exp(-4 * mean)), 4) for mean in (2 / 3, -2 / 3)]
    with pytest.raises(UserError, match=r"label \(best\) is not a label of .*: use one of good, other"):
        run(ScoreQuality(path, label="best"), text("good", 1))
    with pytest.raises(UserError, match="label is missing"):
        run(ScoreQuality(path), text("good", 1))


def test_other_files_are_rejected(tmp_path):
    (tmp_path / "a.quality").write_bytes(b"no classifier")
    with pytest.raises(UserError, match=r"a\.quality is not a quality classifier"):
        run(ScoreQuality(str(tmp_path / "a.quality")), "text")
    with pytest.raises(UserError, match="cannot be read"):
        run(ScoreQuality(str(tmp_path / "b.quality")), "text")


def test_infinite_weights_are_rejected_in_a_changed_file(tmp_path):
    path = str(tmp_path / "a.quality")
    QualityClassifier(np.zeros(8, np.float32), 0.0, 1, {}).save(path)
    assert load_classifier(path).score("any words") == 0.5
    QualityClassifier(np.zeros(8, np.float32), math.nan, 1, {}).save(path)
    with pytest.raises(UserError, match="it has infinite weights"):
        load_classifier(path)


def test_few_examples_are_rejected(folders, tmp_path):
    pytest.importorskip("sklearn")
    (tmp_path / "one.txt").write_text("A single example of a good text.")
    with pytest.raises(UserError, match="1 different documents are too few examples: use sources with at least 20"):
        train_classifier([str(tmp_path / "one.txt")], [f"{folders}/other"], TrainingOptions())
