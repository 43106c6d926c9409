"""A simulated pipeline schedule has the bubble and the memory of the formulas."""

from itertools import pairwise

import pytest

from megaptm.config import Layout
from megaptm.families.gpt import GPT3
from megaptm.plan.activations import count_passes_in_flight
from megaptm.plan.workload import Workload
from megaptm.spec import published_spec
from tests.plan.pipeline_schedule import order, timeline

SHAPES = [(4, 1, 8), (4, 1, 2), (8, 1, 16), (4, 2, 8), (4, 3, 12), (2, 2, 4), (1, 1, 3)]


@pytest.mark.parametrize(("stages", "chunks", "microbatches"), SHAPES)
def test_bubble_equals_the_formula(stages, chunks, microbatches):
    """The bubble is the time of (stages - 1) / chunks micro-batches (arXiv:2104.04473, section 2.2)."""
    forward, backward = [1.0 / chunks] * stages, [2.0 / chunks] * stages
    passes = timeline(stages=stages, chunks=chunks, microbatches=microbatches, forward=forward, backward=backward)
    assert max(end.stop for end in passes) == pytest.approx(3.0 * (microbatches + (stages - 1) / chunks))


@pytest.mark.parametrize(("stages", "chunks", "microbatches"), SHAPES)
def test_passes_are_complete_and_do_not_overlap(stages, chunks, microbatches):
    passes = timeline(
        stages=stages, chunks=chunks, microbatches=microbatches, forward=[1.0] * stages, backward=[2.0] * stages
    )
    assert len({(pass_.stage, pass_.chunk, pass_.microbatch, pass_.backward) for pass_ in passes}) == len(passes)
    assert len(passes) == 2 * stages * chunks * microbatches
    for stage in range(stages):
        stage_passes = sorted((pass_ for pass_ in passes if pass_.stage == stage), key=lambda pass_: pass_.start)
        assert all(before.stop <= after.start for before, after in pairwise(stage_passes))


@pytest.mark.parametrize(("stages", "chunks", "microbatches"), SHAPES)
def test_passes_in_flight(stages, chunks, microbatches):
    layout = Layout(pipeline=stages, virtual=chunks)
    work = Workload(spec=published_spec(GPT3, "175b"), lengths={"decoder": 8}, layout=layout, batch=microbatches)
    for stage in range(stages):
        held = peak = 0
        for _, _, backward in order(stage, stages=stages, chunks=chunks, microbatches=microbatches):
            held += -1 if backward else 1
            peak = max(peak, held)
        assert peak == count_passes_in_flight(work, stage)


def test_slow_stage_delays_the_schedule():
    even = timeline(stages=3, chunks=1, microbatches=6, forward=[1, 1, 1], backward=[2, 2, 2])
    slow = timeline(stages=3, chunks=1, microbatches=6, forward=[1, 1, 2], backward=[2, 2, 4])
    assert max(pass_.stop for pass_ in slow) == pytest.approx(6 * 6 + 2 * 3)
    assert max(pass_.stop for pass_ in even) == pytest.approx(3 * 8)
