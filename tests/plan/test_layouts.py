"""The layouts that configs come with: what they promise holds on the machine they are for."""

from functools import cache
from pathlib import Path

import pytest

from megaptm.config import UncheckedConfig, load
from megaptm.families import CATALOGUE
from megaptm.plan.layouts import MACHINE, markdown
from megaptm.plan.machine import load_machine
from megaptm.plan.plan import make_plan
from megaptm.plan.search import Candidate, search_layouts
from tests import ROOT

A100 = load_machine(MACHINE)
ROWS = [
    (path, devices)
    for family in CATALOGUE
    for path in sorted((ROOT / "configs" / family).glob("*.yaml"))
    if not path.stem.startswith("tiny")
    for devices in UncheckedConfig.read(path).offered_devices
]
PATHS = sorted({path for path, _ in ROWS})
SHORT = ("gpt3/small", "bert/large", "t5/11b")
"""Searched in every run of the tests: one of each kind. To search for all is for the drills."""
SEARCHED = [
    pytest.param(*row, marks=[] if f"{row[0].parent.name}/{row[0].stem}" in SHORT else pytest.mark.drill)
    for row in ROWS
]


@cache
def fastest(path: Path, devices: int) -> Candidate | None:
    """What the planner would choose."""
    fitting = search_layouts(load(path), A100, devices).fitting
    return fitting[0] if fitting else None


def name(value: Path | int) -> str:
    """Of a row's test."""
    return f"{value.parent.name}-{value.stem}" if isinstance(value, Path) else str(value)


@pytest.mark.parametrize(("path", "devices"), ROWS, ids=name)
def test_a_layout_fills_its_devices_and_leaves_an_eighth_of_the_memory(path, devices):
    config = load(path, [f"devices={devices}"])
    assert config.layout.processes == devices
    made = make_plan(config, A100)
    assert made.memory[made.fullest_stage].total <= 7 / 8 * A100.usable_bytes


@pytest.mark.parametrize(("path", "devices"), SEARCHED, ids=name)
def test_a_layout_is_among_the_fastest(path, devices):
    made = make_plan(load(path, [f"devices={devices}"]), A100)
    assert made.step.seconds <= 1.1 * fastest(path, devices).step.seconds


@pytest.mark.drill
def test_8_and_64_devices_have_a_layout_wherever_the_model_fits():
    for path in PATHS:
        train, data = load(path).train, load(path).data
        for devices in (8, 64):
            # A task's 32 short rows are work for one machine.
            enough = devices == 8 or train.batch * data.sequence > 32 * 128
            wanted = enough and fastest(path, devices) is not None
            assert (devices in UncheckedConfig.read(path).offered_devices) == wanted


@pytest.mark.drill
def test_1024_devices_have_a_layout_but_for_small_batches():
    for path in PATHS:
        train, data = load(path).train, load(path).data
        # The 118 layers of PaLM 540B cannot be cut for so many. 64 rows could be, for a hundredth of what they can do.
        large = train.batch > 64 and train.batch * data.sequence > 256 * 512
        wanted = large and fastest(path, 1024) is not None
        assert (1024 in UncheckedConfig.read(path).offered_devices) == wanted


def test_the_shipped_default_is_the_fewest_devices_but_for_the_175b():
    for path in PATHS:
        assert load(path).layout.processes == (
            1024 if path.stem == "175b" else min(UncheckedConfig.read(path).offered_devices)
        )


def test_the_page_shows_this_table():
    page = (ROOT / "docs" / "layouts.md").read_text(encoding="utf-8")
    assert markdown() in page, "run python -m megaptm.plan.layouts and put its table into docs/layouts.md"
