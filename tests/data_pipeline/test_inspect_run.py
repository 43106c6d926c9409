"""`megaptm inspect` shows the samples that a run trains on."""

import re

import pytest
from click.testing import CliRunner

from megaptm.__main__ import main
from megaptm.config import load_config
from megaptm.data.loader import Loader
from megaptm.run.corpora import RunCorpora
from tests.train.runs import CONFIGS, SHAPE, build, write_text

WORDS = ["train.steps=20", "train.batch=4", "data.workers=0", *SHAPE]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inspect")
    return build(write_text(folder / "text"), folder / "corpus", "gpt2")


def inspect(corpus, *words, code=0):
    result = CliRunner().invoke(
        main, ["inspect", str(CONFIGS / "gpt2/tiny.yaml"), f"data.mix={{{corpus}: 1}}", *WORDS, *words]
    )
    assert result.exit_code == code, result.output
    return result.output


def letters(text):
    return re.sub(r"[\W_]", "", text)


def test_samples_of_a_step_are_shown(corpus):
    output = inspect(corpus, "--step", "4", "--count", "2")
    assert re.findall(r"sample \d+", output) == ["sample 12", "sample 13"]
    corpora = RunCorpora(load_config(CONFIGS / "gpt2/tiny.yaml", [f"data.mix={{{corpus}: 1}}", *WORDS]))
    with Loader(corpora.mix("train"), start_step=3, batch=4, microbatch=4, workers=0) as loader:
        _, [microbatch] = next(iter(loader))
    for row in microbatch["tokens"][:2]:
        assert letters(corpora.tokenizer.decode(row.tolist())) in letters(output)


def test_validation_has_no_steps(corpus):
    assert "sample 0" in inspect(corpus, "--split", "validation")
    assert "--step (2) is for --split train" in inspect(corpus, "--split", "validation", "--step", "2", code=2)


def test_steps_before_other_data_are_refused(corpus):
    cursors = "data.cursors={step: 5, sample: 20, read: {}}"
    assert "--step (5) must be at least 6: the run has other data after step 5" in inspect(
        corpus, cursors, "--step", "5", code=2
    )


def test_steps_of_later_phases_are_refused(corpus):
    phases = "phases=[{until: 8}, {data.sequence: 16}]"
    assert "--step (9) must be at most 8, the end of the present phase" in inspect(
        corpus, phases, "--step", "9", code=2
    )
