"""Layout with which a run continues after devices are lost."""

import pytest

from megaptm.config import load_config
from megaptm.plan.elastic import elastic_layout
from megaptm.plan.machine import load_machine
from tests.test_cli import TINY


def sizes_on(overrides, nodes, machine=None, config=TINY):
    """Return tensor, pipeline and data ranks of the layout on nodes with these numbers of devices."""
    layout = elastic_layout(
        load_config(config, overrides),
        lambda tensor: sum(devices // tensor * tensor for devices in nodes),
        machine and load_machine(machine),
    )
    return layout and (layout.tensor, layout.pipeline, layout.data)


OVERRIDES = ["train.batch=32", "layout.microbatch=1"]


@pytest.mark.parametrize(
    ("layout", "nodes", "expected"),
    [
        ("layout.tensor=2 layout.data=4", [4], (2, 1, 2)),
        ("layout.tensor=2 layout.data=4", [3, 3], (2, 1, 2)),
        ("layout.tensor=2 layout.data=8", [8, 5], (2, 1, 4)),  # 6 data ranks would not divide the batch
        ("layout.tensor=2 layout.pipeline=2 layout.data=2", [4, 3], (2, 2, 1)),
        ("layout.tensor=4 layout.data=2", [3, 3], (2, 1, 2)),  # no node has 4
        ("layout.tensor=4 layout.pipeline=4", [4, 4], (4, 2, 1)),
        ("layout.pipeline=4 layout.virtual=1", [1], (1, 1, 1)),
        ("layout.full_sharding=true layout.data=4", [2], (1, 1, 2)),
        ("layout.full_sharding=true layout.data=2", [1], (1, 1, 1)),  # one data rank has nothing to divide
        ("layout.data=2", [], None),
    ],
)
def test_nearest_layout_for_the_remaining_devices(layout, nodes, expected):
    sizes = sizes_on([*OVERRIDES, *layout.split()], nodes)
    assert sizes == expected


def test_elastic_layout_is_legal_and_keeps_other_keys():
    config = load_config(TINY, [*OVERRIDES, "layout.tensor=2", "layout.sequence_parallel=true", "layout.data=2"])
    layout = elastic_layout(config, lambda tensor: 1 if tensor == 1 else 0)
    assert layout.model_dump() == {
        **config.layout.model_dump(),
        "tensor": 1,
        "data": 1,
        "sequence_parallel": False,
    }


def test_elastic_layout_fits_in_the_memory_of_the_machine():
    """The model of 13 billion parameters needs 8 GPUs; it does not fit on 4."""
    wide = ["layout.tensor=8", "layout.pipeline=1", "layout.data=4", "layout.microbatch=1"]
    config = "configs/gpt3/13b.yaml"
    assert sizes_on(wide, [8, 8], "a100-80g", config) == (8, 1, 2)
    assert sizes_on(wide, [2], None, config) is not None
    assert sizes_on(wide, [2], "a100-80g", config) is None
