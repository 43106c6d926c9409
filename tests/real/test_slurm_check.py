"""Nodes of an allocation are checked, and those that differ are reported."""

import contextlib
import json
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import numpy
import psutil
import pytest

from tests.processes import command_of, is_alive, send
from tests.real.jobs import small

pytestmark = pytest.mark.real

CHECK = """
import json, sys
from pathlib import Path
from megaptm.check.finding import Case, run_checks
from megaptm.check.nodes import check_nodes
from megaptm.check.speed import check_speed
from megaptm.run.folder import read_config

case = Case(config=read_config(Path(sys.argv[2]), sys.argv[3:]), speed=sys.argv[1] == "speed")
print(json.dumps([finding.to_json() for finding in run_checks([("nodes", check_nodes), ("speed", check_speed)], case)]))
"""


@pytest.fixture
def run(tmp_path):
    """Run folder on its own disk, as far as the tests go."""
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk/run"


@pytest.fixture
def check_allocation(slurm, run, real_corpus):
    """Function that returns the findings in an allocation of all nodes."""

    def findings(*, speed=False):
        words = small("gpt2", run, real_corpus("byte-bpe"), "layout.data=4")
        output = slurm.run_in_allocation(4, sys.executable, "-c", CHECK, "speed" if speed else "", *words)
        return [(finding["topic"], finding["state"], finding["message"]) for finding in json.loads(output)]

    return findings


def test_equal_nodes_have_no_fault(check_allocation, run):
    [(_, state, message)] = check_allocation()
    assert state == "ok"
    assert message.startswith("4 nodes (node1, node2, node3, node4) each have ")
    assert list(run.parent.iterdir()) == []


def test_other_software_is_reported_with_its_node(check_allocation, slurm, tmp_path):
    (tmp_path / "apex").mkdir()
    (tmp_path / "apex/__init__.py").touch()
    information = next(Path(numpy.__file__).parents[1].glob("numpy-*.dist-info"))
    old = shutil.copytree(information, tmp_path / "numpy-1.0.dist-info")
    text = (old / "METADATA").read_text()
    (old / "METADATA").write_text(text.replace(f"\nVersion: {numpy.__version__}\n", "\nVersion: 1.0\n", 1))
    with slurm.task_variables("node3", PYTHONPATH=str(tmp_path)):
        findings = check_allocation()
    assert {state for _, state, _ in findings} == {"fault"}
    assert [message for _, _, message in findings] == [
        f"node3 has numpy 1.0 (3 others have {numpy.__version__}): install the same versions on all nodes.",
        "The package apex on node3 is PyPI's, not NVIDIA's, and breaks megatron-core: pip uninstall apex.",
    ]


def test_node_without_shared_disk_is_reported(check_allocation, slurm, run):
    with slurm.hide_folder("node4", run.parent):
        [(_, state, message)] = check_allocation()
    assert state == "fault"
    assert (
        message == f"node4 cannot see this node's files in {run.parent}: put run=FOLDER on a disk that all nodes share."
    )


def test_node_without_megaptm_is_reported(check_allocation, slurm):
    with slurm.hide_folder("node2", Path(sys.prefix)):
        [(_, state, message)] = check_allocation()
    assert state == "fault"
    assert message.startswith("megaptm does not run on node2 (")


LOADED_THREADS = 2
"""Threads of Python and numpy. torch starts more when it multiplies."""


def test_slow_node_is_reported(check_allocation, slurm):
    is_over = threading.Event()
    halting = threading.Thread(target=stop_probes_repeatedly, args=(slurm, "node3", is_over))
    halting.start()
    expected = {f"{topic_name}: node3 reaches " for topic_name in ("Matrix products", "Links")}
    try:
        for _ in range(3):  # on a busy machine, another node may be as slow during a measurement
            findings = check_allocation(speed=True)
            slow = [message for topic, state, message in findings if (topic, state) == ("speed", "warning")]
            expected = {start for start in expected if not any(message.startswith(start) for message in slow)}
            if not expected:
                break
    finally:
        is_over.set()
        halting.join()
    assert not expected, findings


def stop_probes_repeatedly(slurm, node, is_over):
    """Stop the speed probes of a node for 95% of the time, after they have loaded their libraries."""
    probes: list[psutil.Process] = []
    while not is_over.is_set():
        # Searched while they still load. On a busy machine this takes longer than a measurement.
        probes = [process for process in probes if is_alive(process)] or speed_probes(slurm, node)
        stopped = [process for process in probes if has_loaded(process)]
        send(stopped, signal.SIGSTOP)
        time.sleep(0.38 if stopped else 0.0)
        send(stopped, signal.SIGCONT)
        time.sleep(0.02)


def speed_probes(slurm, node):
    """Return the speed probes on a node."""
    return [process for process in slurm.tasks_of(node) if "megaptm.check.speed_probe" in command_of(process)]


def has_loaded(process):
    """Whether a probe has loaded its libraries."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.num_threads() > LOADED_THREADS
    return False
