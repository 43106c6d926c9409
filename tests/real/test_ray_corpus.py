"""Text to model in one job: the corpus is built once on the cluster, and the run reads it."""

import pytest

from tests.drills.program import last_step
from tests.real.jobs import small

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]

RECIPE = """
sources: [{text}/*.txt]
tokenizer: {{vocabulary: 400}}
validation: 0.1
"""


@pytest.fixture
def words(tmp_path):
    """Arguments of a run whose corpus does not exist yet."""
    text = tmp_path / "text"
    text.mkdir()
    for number in range(60):
        sentences = [f"Page {number} says that {number} and {other} are {number + other}." for other in range(40)]
        (text / f"{number}.txt").write_text("\n".join(sentences))
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(text=text))
    built = ["--corpus", str(tmp_path / "recipe.yaml"), "corpus.workers=2"]
    return [*small("gpt2", tmp_path / "run", tmp_path / "corpus"), "layout.data=2", *built]


def test_corpus_is_built_once_before_the_run(ray, words, tmp_path):
    first = ray.finish(ray.submit(*words, "train.steps=3"))
    assert (first.status, first.code) == ("SUCCEEDED", 0), first.log
    assert (tmp_path / "corpus/manifest.json").exists()
    assert last_step(tmp_path / "run") == 3
    build_time = (tmp_path / "corpus/manifest.json").stat().st_mtime_ns

    again = ray.finish(ray.submit(*words, "train.steps=5"))
    assert (again.status, again.code) == ("SUCCEEDED", 0), again.log
    assert f"Corpus {tmp_path / 'corpus'} exists." in again.log
    assert last_step(tmp_path / "run") == 5
    assert (tmp_path / "corpus/manifest.json").stat().st_mtime_ns == build_time
