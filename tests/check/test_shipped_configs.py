"""Checks of the shipped configs, for each number of devices that they have a layout for."""

from pathlib import Path

import pytest

from megaptm.check.api import CHECKS
from megaptm.check.finding import CheckInput, ResourceRequest, run_checks
from megaptm.config import UncheckedConfig, load_config
from megaptm.families import LAYERLESS
from megaptm.plan.machine import load_machine

CONFIGS = Path(__file__).parents[2] / "configs"
SHIPPED = sorted(
    path for path in CONFIGS.glob("*/*.yaml") if path.parent.name not in ("machines", "corpora", *LAYERLESS)
)
CONFIG_CHECKS = [(topic, check) for topic, check in CHECKS if topic in ("config", "processes", "memory", "time")]
"""Checks that need only the config."""


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_shipped_config_is_ok_on_common_machines(path):
    for devices in UncheckedConfig.read(path).offered_devices or [None]:
        config = load_config(path, [f"devices={devices}"] if devices else [])
        for machine in ("a100-80g", "h100-80g"):
            case = CheckInput(
                config=config, machine=load_machine(machine), request=ResourceRequest(seconds=24 * 3600.0)
            )
            problems = [finding.message for finding in run_checks(CONFIG_CHECKS, case) if finding.state != "ok"]
            assert problems == [], f"{devices} devices of {machine}"


@pytest.mark.parametrize("path", sorted(path for name in LAYERLESS for path in (CONFIGS / name).glob("*.yaml")))
def test_word_vectors_fit_and_their_time_is_unknown(path):
    case = CheckInput(
        config=load_config(path), machine=load_machine("a100-80g"), request=ResourceRequest(seconds=24 * 3600.0)
    )
    states = {finding.topic: finding.state for finding in run_checks(CONFIG_CHECKS, case)}
    assert states.pop("time") == "unknown"
    assert {*states.values()} == {"ok"}
