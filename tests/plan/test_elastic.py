"""The layout that a run goes on with when devices are lost."""

import pytest

from megaptm.config import load
from megaptm.plan.elastic import elastic_layout
from megaptm.plan.machine import load_machine
from tests.test_cli import TINY


def left(overrides, nodes, machine=None, config=TINY):
    """The layout on nodes of so many devices, as tensor x pipeline x data."""
    found = elastic_layout(
        load(config, overrides),
        lambda tensor: sum(one // tensor * tensor for one in nodes),
        machine and load_machine(machine),
    )
    return found and (found.tensor, found.pipeline, found.data)


BIG = ["train.batch=32", "layout.microbatch=1"]


@pytest.mark.parametrize(
    ("layout", "nodes", "expected"),
    [
        ("layout.tensor=2 layout.data=4", [4], (2, 1, 2)),
        ("layout.tensor=2 layout.data=4", [3, 3], (2, 1, 2)),
        ("layout.tensor=2 layout.data=8", [8, 5], (2, 1, 4)),  # 6 data ranks would not divide the batch
        ("layout.tensor=2 layout.pipeline=2 layout.data=2", [4, 3], (2, 2, 1)),
        ("layout.tensor=4 layout.data=2", [3, 3], (2, 1, 2)),  # nowhere 4 together
        ("layout.tensor=4 layout.pipeline=4", [4, 4], (4, 2, 1)),
        ("layout.pipeline=4 layout.virtual=1", [1], (1, 1, 1)),
        ("layout.data=2", [], None),
    ],
)
def test_the_nearest_that_there_is_room_for(layout, nodes, expected):
    found = left([*BIG, *layout.split()], nodes)
    assert found == expected


def test_what_is_found_is_legal_and_keeps_the_rest_of_the_layout():
    config = load(TINY, [*BIG, "layout.tensor=2", "layout.sequence_parallel=true", "layout.data=2"])
    found = elastic_layout(config, lambda tensor: 1 if tensor == 1 else 0)
    assert found.model_dump() == {
        **config.layout.model_dump(),
        "tensor": 1,
        "data": 1,
        "sequence_parallel": False,
    }


def test_on_a_machine_that_is_named_its_memory_must_do():
    """The model of 13 billion parameters takes 8 GPUs at least; on 4 of them nothing fits."""
    wide = ["layout.tensor=8", "layout.pipeline=1", "layout.data=4", "layout.microbatch=1"]
    config = "configs/gpt3/13b.yaml"
    assert left(wide, [8, 8], "a100-80g", config) == (8, 1, 2)
    assert left(wide, [2], None, config) is not None
    assert left(wide, [2], "a100-80g", config) is None
