"""What a launcher asks before it submits: what decides, in no time."""

import shutil
from pathlib import Path

import pytest

from megaptm.check.api import before_submission
from megaptm.check.finding import Case, Request
from megaptm.errors import UserError
from megaptm.run.folder import read_config
from tests.drills.program import arguments


@pytest.fixture
def case(real_corpus, tmp_path):
    def make(*overrides, corpus=None, **more):
        path, *words = arguments("gpt2", tmp_path / "run", corpus or real_corpus("byte-bpe"), *overrides)
        return Case(config=read_config(Path(path), words), **more)

    return make


def test_a_good_config_has_neither_faults_nor_warnings_and_leaves_nothing(case, tmp_path):
    found = before_submission(case("layout.data=4", request=Request(nodes=2, processes_per_node=2)))
    assert {finding.state for finding in found} <= {"good", "unknown"}
    assert list(tmp_path.iterdir()) == []


def test_a_request_that_is_not_the_layout_is_refused(case):
    with pytest.raises(UserError, match=r"^3 nodes x 8 processes are 24, but the layout needs 4 \(data 4 x"):
        before_submission(case("layout.data=4", request=Request(nodes=3, processes_per_node=8)))


def test_a_missing_shard_is_refused_and_more_faults_are_counted(case, real_corpus, tmp_path):
    corpus = shutil.copytree(real_corpus("byte-bpe"), tmp_path / "corpus")
    (corpus / "train-000000.tar").unlink()
    (corpus / "validation-000000.tar").unlink()
    with pytest.raises(UserError, match=r"train-000000.tar is missing but .* \(1 more: see megaptm check\)$"):
        before_submission(case(corpus=corpus))
