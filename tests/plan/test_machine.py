"""Machine descriptions, and times of communication."""

import pytest
import yaml

from megaptm.errors import UserError
from megaptm.plan.machine import FOLDER, known_machines, load_machine
from megaptm.plan.network import collective_seconds, message_seconds

A100 = load_machine("a100-80g")


def test_known_machines():
    expected = {"a100-40g", "a100-80g", "h100-80g", "h200-141g", "b200-180g", "v100-32g", "rtx4090", "this-cpu"}
    assert expected <= set(known_machines())


def test_machine_by_name_and_by_path():
    assert load_machine(str(FOLDER / "a100-80g.yaml")) == A100


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"memory": 80}, "unknown key memory; a machine has name, device_name, devices"),
        ({"devices": 0}, "devices must be at least 1, not 0."),
        (
            {"intra_node": {"gigabytes_per_second": 1.0, "efficiency": 2.0, "microseconds": 1.0}},
            "intra_node.efficiency must be",
        ),
        ({"name": None}, "name is missing."),
        ({"memory_gib": float("inf")}, "memory_gib must be a finite number, not inf."),
        ({"teraflops": {"bf16": float("nan")}}, "teraflops.bf16 must be a finite number, not nan."),
        ({"node_mtbf_days": 1e-300}, "node_mtbf_days must be at least 1e-06, not 1e-300."),
        ({"reserved_gib": 200}, "reserved_gib (200) must be less than memory_gib (79.2)"),
    ],
)
def test_error_names_file_and_key(tmp_path, change, expected):
    values = yaml.safe_load((FOLDER / "a100-80g.yaml").read_text())
    values = {key: value for key, value in {**values, **change}.items() if value is not None}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(UserError, match=r"mine\.yaml") as error:
        load_machine(str(path))
    assert expected in str(error.value)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a100-80", "did you mean a100-80g"), ("cray", "use one of"), ("cray.yaml", "no such config")],
)
def test_unknown_machine(name, expected):
    with pytest.raises(UserError, match=expected):
        load_machine(name)


def test_all_gather_within_a_node():
    seconds = collective_seconds(A100, 8e9, ranks=8, stride=1)
    assert seconds == pytest.approx(7 / 8 * 8e9 / (300e9 * A100.intra_node.efficiency), rel=0.01)


def test_ranks_on_one_node_share_its_network_adapters():
    alone = collective_seconds(A100, 8e9, ranks=16, stride=8)
    together = collective_seconds(A100, 8e9, ranks=128, stride=1)
    assert alone > 7 * together


def test_message_within_a_node_is_faster():
    assert message_seconds(A100, 1e9, stride=1, ranks=8) < message_seconds(A100, 1e9, stride=64, ranks=1024) / 5


def test_one_rank_needs_no_communication():
    assert collective_seconds(A100, 1e9, ranks=1, stride=1) == 0
