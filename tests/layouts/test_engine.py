"""The engine before its first step."""

import pytest

from megaptm.config import Layout
from tests.layouts.cases import evaluate_untrained, group_timeouts
from tests.ranks import run_ranks

TP2 = Layout(microbatch=2, tensor=2, sequence_parallel=True)


def test_process_groups_have_the_timeout_of_the_run():
    for limits in run_ranks(2, group_timeouts, Layout(microbatch=2, pipeline=2), 77.0):
        assert {*limits} == {77.0}


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_evaluation_before_the_first_step(family):
    alone = run_ranks(1, evaluate_untrained, family, Layout(microbatch=2))[0]
    for losses in run_ranks(2, evaluate_untrained, family, TP2):
        assert losses == pytest.approx(alone, rel=1e-5)
