"""Checks of a launcher before it submits a run."""

import shutil
from pathlib import Path

import pytest

from megaptm.check.api import check_before_submission
from megaptm.check.finding import CheckInput, ResourceRequest
from megaptm.errors import UserError
from megaptm.run.folder import read_config
from tests.drills.program import arguments


@pytest.fixture
def case(real_corpus, tmp_path):
    def make(*overrides, corpus=None, **more):
        path, *words = arguments("gpt2", tmp_path / "run", corpus or real_corpus("byte-bpe"), *overrides)
        return CheckInput(config=read_config(Path(path), words), **more)

    return make


def test_valid_config_has_no_faults_or_warnings(case, tmp_path):
    findings = check_before_submission(case("layout.data=4", request=ResourceRequest(nodes=2, processes_per_node=2)))
    assert {finding.state for finding in findings} <= {"ok", "unknown"}
    assert list(tmp_path.iterdir()) == []


def test_request_that_differs_from_the_layout_is_refused(case):
    with pytest.raises(UserError, match=r"^3 nodes x 8 processes are 24, but the layout needs 4 \(data 4 x"):
        check_before_submission(case("layout.data=4", request=ResourceRequest(nodes=3, processes_per_node=8)))


def test_missing_shard_is_refused_and_further_faults_counted(case, real_corpus, tmp_path):
    corpus = shutil.copytree(real_corpus("byte-bpe"), tmp_path / "corpus")
    (corpus / "train-000000.tar").unlink()
    (corpus / "validation-000000.tar").unlink()
    with pytest.raises(UserError, match=r"train-000000.tar is missing but .* \(1 more: see megaptm check\)$"):
        check_before_submission(case(corpus=corpus))
