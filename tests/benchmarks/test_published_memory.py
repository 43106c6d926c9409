"""The planner's memory beside what published runs recorded."""

from pathlib import Path

import pytest

from benchmarks.published.memory import markdown, rows
from benchmarks.published.runs import Row, sources, work_of_row
from megaptm.plan.machine import load_machine

RECORDED = rows()
RAN = [(source, Row.model_validate(values)) for source in sources() if source.is_sharded for values in source.printed()]


@pytest.mark.parametrize("row", RECORDED, ids=lambda row: row.name)
def test_recorded_memory_is_within_a_tenth(row):
    assert row.planned() == pytest.approx(row.peak, rel=0.10)


def test_all_families_and_all_ways_of_cutting_are_recorded():
    assert {row.shape for row in RECORDED} == {"bert", "gpt", "t5"}
    for name in ("tensor", "pipeline", "virtual"):
        assert {getattr(row, name) for row in RECORDED} >= {1, 4 if name != "virtual" else 3}
    for name in ("sequence_parallel", "distributed_optimizer"):
        assert {getattr(row, name) for row in RECORDED} == {False, True}


def test_no_run_that_was_published_is_planned_to_need_more_than_its_device_has():
    assert len(RAN) > 200
    for source, row in RAN:
        machine = load_machine(source.machine)
        needed = source.estimate_memory(work_of_row(row, source.engine)) / 2**30
        assert needed < machine.memory_gib, row.name


def test_the_page_shows_this_table():
    page = (Path(__file__).parents[2] / "docs" / "planner.md").read_text(encoding="utf-8")
    assert markdown() in page, "run benchmarks/planner.py and put its table into docs/planner.md"
