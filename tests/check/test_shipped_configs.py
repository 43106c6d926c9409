"""No config that comes with the project is warned of, on any number of devices that it has a layout for."""

from pathlib import Path

import pytest

from megaptm.check.api import CHECKS
from megaptm.check.finding import Case, Request, look
from megaptm.config import UncheckedConfig, load
from megaptm.families import WORDS
from megaptm.plan.machine import load_machine

CONFIGS = Path(__file__).parents[2] / "configs"
SHIPPED = sorted(path for path in CONFIGS.glob("*/*.yaml") if path.parent.name not in ("machines", "corpora", *WORDS))
COUNTED = [(topic, check) for topic, check in CHECKS if topic in ("config", "processes", "memory", "time")]
"""What is counted from the config alone."""


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_shipped_config_is_good_on_a_common_machine(path):
    for devices in UncheckedConfig.read(path).offered_devices or [None]:
        config = load(path, [f"devices={devices}"] if devices else [])
        for machine in ("a100-80g", "h100-80g"):
            case = Case(config=config, machine=load_machine(machine), request=Request(seconds=24 * 3600.0))
            bad = [finding.says for finding in look(COUNTED, case) if finding.state != "good"]
            assert bad == [], f"{devices} devices of {machine}"


@pytest.mark.parametrize("path", sorted(path for name in WORDS for path in (CONFIGS / name).glob("*.yaml")))
def test_word_vectors_fit_and_how_long_they_take_is_not_known(path):
    case = Case(config=load(path), machine=load_machine("a100-80g"), request=Request(seconds=24 * 3600.0))
    found = {finding.topic: finding.state for finding in look(COUNTED, case)}
    assert found.pop("time") == "unknown"
    assert {*found.values()} == {"good"}
