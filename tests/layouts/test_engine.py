"""What an engine promises before its first step."""

import pytest

from megaptm.config import Layout
from tests.layouts.cases import evaluate_at_once, time_limits
from tests.ranks import run_ranks

TP2 = Layout(microbatch=2, tensor=2, sequence_parallel=True)


def test_no_group_gives_up_before_the_run_does():
    for limits in run_ranks(2, time_limits, Layout(microbatch=2, pipeline=2), 77.0):
        assert {*limits} == {77.0}


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_an_engine_with_dropout_is_measured_before_it_is_trained(family):
    alone = run_ranks(1, evaluate_at_once, family, Layout(microbatch=2))[0]
    for losses in run_ranks(2, evaluate_at_once, family, TP2):
        assert losses == pytest.approx(alone, rel=1e-5)
