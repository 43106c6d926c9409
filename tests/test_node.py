"""CPUs of this machine that a process may use."""

import os

import pytest

from megaptm.node import available_cpus

CPUS = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("group", "files", "cpus"),
    [
        ("0::/", {"cpu.max": "100000 100000"}, 1),
        ("0::/", {"cpu.max": "50000 100000"}, 1),
        ("0::/", {"cpu.max": "max 100000"}, CPUS),
        ("0::/", {"cpu.max": f"{CPUS + 5}00000 100000"}, CPUS),
        ("0::/pods/mine", {"cpu.max": "max 100000", "pods/cpu.max": "100000 100000"}, 1),
        ("4:cpu,cpuacct:/", {"cpu/cpu.cfs_quota_us": "150000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ("4:cpu:/docker/id", {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ("4:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, CPUS),
        ("3:cpuset:/", {"cpu.max": "100000 100000"}, CPUS),
        ("0::/", {}, CPUS),
    ],
)
def test_quota_of_a_container_limits_cpus(group, files, cpus, tmp_path):
    """Ollama's issue 17916 and XGBoost's 7653: more threads than the quota made a program 45 to 90 times as slow."""
    write_files(tmp_path, {"group": f"{group}\n", **{f"cgroup/{name}": text for name, text in files.items()}})
    assert available_cpus(tmp_path / "cgroup", tmp_path / "group") == cpus


def write_files(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_cpus_without_control_groups(tmp_path):
    assert available_cpus(tmp_path, tmp_path / "group") == CPUS
