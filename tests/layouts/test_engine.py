"""The engine before its first step."""

from collections import Counter

import pytest

from megaptm.config import Layout
from tests.layouts.cases import evaluate_untrained, opened_groups
from tests.ranks import run_ranks

TP2 = Layout(microbatch=2, tensor=2, sequence_parallel=True)


def test_process_groups_have_the_timeout_of_the_run():
    for groups in run_ranks(2, opened_groups, Layout(microbatch=2, pipeline=2), 77.0):
        assert {minutes for _, minutes in groups} == {77.0}


def test_cpu_ranks_open_one_group_for_each_set_of_ranks():
    """Each gloo group has threads, which wake up a hundred times per second."""
    for groups in run_ranks(2, opened_groups, TP2, 77.0):
        assert Counter(ranks for ranks, _ in groups) == {(0, 1): 1, (0,): 1, (1,): 1}


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_evaluation_before_the_first_step(family):
    alone = run_ranks(1, evaluate_untrained, family, Layout(microbatch=2))[0]
    for losses in run_ranks(2, evaluate_untrained, family, TP2):
        assert losses == pytest.approx(alone, rel=1e-5)
