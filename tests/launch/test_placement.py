"""Placement of ranks on nodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaptm.config import Layout
from megaptm.launch.ray.placement import Node, assign_ranks, count_ranks, not_enough_devices_error, without_excluded


def nodes(*free, devices=None):
    return [Node(f"id{n}", f"10.0.0.{n}", devices or num_free, num_free) for n, num_free in enumerate(free)]


def placed(free, **layout):
    return [
        (assignment.node.id, *assignment.ranks) for assignment in assign_ranks(nodes(*free), Layout(**layout)) or []
    ]


def test_ranks_fill_the_largest_nodes_first():
    assert placed([2, 4], tensor=2, data=3) == [("id1", 0, 1, 2, 3), ("id0", 4, 5)]
    assert placed([8, 8], data=8) == [("id0", 0, 1, 2, 3, 4, 5, 6, 7)]


def test_incomplete_tensor_groups_are_not_placed():
    assert placed([3, 3, 3], tensor=2, pipeline=3) == [("id0", 0, 1), ("id1", 2, 3), ("id2", 4, 5)]
    assert placed([3, 3, 3], tensor=4) == []


def test_excluded_nodes_are_not_used():
    usable = without_excluded(nodes(2, 2, 2), ["10.0.0.0"])
    assert [node.id for node in usable] == ["id1", "id2"]


@given(
    free=st.lists(st.integers(0, 9), max_size=6),
    tensor=st.integers(1, 4),
    copies=st.integers(1, 8),
)
def test_tensor_groups_are_placed_on_one_node(free, tensor, copies):
    layout = Layout(tensor=tensor, data=copies)
    assignments = assign_ranks(nodes(*free), layout)
    assert (assignments is not None) == (count_ranks(free, tensor) >= layout.processes)
    if assignments is not None:
        assert [rank for assignment in assignments for rank in assignment.ranks] == list(range(layout.processes))
        assert all(len(assignment.ranks) <= assignment.node.free for assignment in assignments)
        assert all(assignment.ranks[0] % tensor == len(assignment.ranks) % tensor == 0 for assignment in assignments)


@pytest.mark.parametrize(
    ("available", "layout", "message"),
    [
        (
            [],
            Layout(),
            "the layout needs 1 GPUs, but the Ray cluster has none: add nodes, or wait for them with --wait",
        ),
        (nodes(0, 0), Layout(), "the Ray cluster has none"),
        (
            nodes(2, 3),
            Layout(tensor=2, data=3),
            "needs 6 GPUs, in groups of 2 on one node (layout.tensor), but the Ray cluster has 2 on 10.0.0.0, 3 on "
            "10.0.0.1: change layout.data",
        ),
        (
            nodes(1, devices=4),
            Layout(data=4),
            "needs 4 GPUs, but the Ray cluster has only 1 on 10.0.0.0 free: wait for other jobs with --wait",
        ),
    ],
)
def test_error_lists_the_available_devices(available, layout, message):
    assert message in str(not_enough_devices_error(available, layout, "GPU"))
