"""Layouts of shipped configs fit on their machine, and are among the fastest."""

from functools import cache
from pathlib import Path

import pytest

from megaptm.config import UncheckedConfig, load_config
from megaptm.config.read import phase_configs
from megaptm.families import CATALOGUE
from megaptm.plan.layouts import MACHINE, layouts_table
from megaptm.plan.machine import load_machine
from megaptm.plan.plan import make_plan
from megaptm.plan.search import Candidate, search_layouts
from tests import ROOT

A100 = load_machine(MACHINE)
ROWS = [
    (path, devices, phase)
    for family in CATALOGUE
    for path in sorted((ROOT / "configs" / family).glob("*.yaml"))
    if not path.stem.startswith("tiny")
    for devices in UncheckedConfig.read(path).offered_devices
    for phase in range(len(UncheckedConfig.read(path).values.get("phases", "1")))
]
PATHS = sorted({path for path, *_ in ROWS})
SHORT = (("gpt3/small", 8), ("bert/large", 64), ("t5/11b", 64))
"""Configs and numbers of devices that are searched outside the drills: one of each kind."""
SEARCHED = [
    pytest.param(
        *(path, devices, phase),
        marks=[] if (f"{path.parent.name}/{path.stem}", devices) in SHORT else pytest.mark.drill,
    )
    for path, devices, phase in ROWS
]


@cache
def fastest(path: Path, devices: int, phase: int = 0) -> Candidate | None:
    """Return the fastest layout that fits."""
    fitting = search_layouts(phase_configs(load_config(path))[phase], A100, devices).fitting
    return fitting[0] if fitting else None


def case_id(value: Path | int) -> str:
    """Return the id of a test."""
    return f"{value.parent.name}-{value.stem}" if isinstance(value, Path) else str(value)


@pytest.mark.parametrize(("path", "devices", "phase"), ROWS, ids=case_id)
def test_layout_uses_all_devices_and_leaves_memory(path, devices, phase):
    config = phase_configs(load_config(path, [f"devices={devices}"]))[phase]
    assert config.layout.processes == devices
    planned = make_plan(config, A100)
    assert planned.memory[planned.fullest_stage].total <= 7 / 8 * A100.usable_bytes


@pytest.mark.parametrize(("path", "devices", "phase"), SEARCHED, ids=case_id)
def test_layout_is_among_the_fastest(path, devices, phase):
    planned = make_plan(phase_configs(load_config(path, [f"devices={devices}"]))[phase], A100)
    assert planned.step.seconds <= 1.1 * fastest(path, devices, phase).step.seconds


@pytest.mark.drill
def test_layouts_for_8_and_64_devices():
    for path in PATHS:
        train, data = load_config(path).train, load_config(path).data
        for devices in (8, 64):
            # On 64 devices a batch of 10,000 tokens spends most of a step on sending gradients.
            enough = devices == 8 or train.batch * data.sequence > 10_000
            expected = enough and fastest(path, devices) is not None
            assert (devices in UncheckedConfig.read(path).offered_devices) == expected


@pytest.mark.drill
def test_layouts_for_1024_devices():
    for path in PATHS:
        train, data = load_config(path).train, load_config(path).data
        # Batches of 64 sequences would use 1% of the devices.
        large = train.batch > 64 and train.batch * data.sequence > 256 * 512
        expected = large and fastest(path, 1024) is not None
        assert (1024 in UncheckedConfig.read(path).offered_devices) == expected


def test_default_layout_has_the_fewest_devices():
    for path in PATHS:
        assert load_config(path).layout.processes == (
            1024 if path.stem == "175b" else min(UncheckedConfig.read(path).offered_devices)
        )


def test_page_shows_the_table():
    page = (ROOT / "docs" / "layouts.md").read_text(encoding="utf-8")
    assert layouts_table() in page, "run python -m megaptm.plan.layouts and put its table into docs/layouts.md"
