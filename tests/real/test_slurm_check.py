"""The nodes of an allocation are asked; each of those that are not like the others is named."""

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

LOOK = """
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
    """The run's folder, on a disk of its own as far as the tests go."""
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk/run"


@pytest.fixture
def look(slurm, run, real_corpus):
    """What is found in an allocation of all nodes."""

    def findings(*, speed=False):
        words = small("gpt2", run, real_corpus("byte-bpe"), "layout.data=4")
        said = slurm.allocated(4, sys.executable, "-c", LOOK, "speed" if speed else "", *words)
        return [(found["topic"], found["state"], found["message"]) for found in json.loads(said)]

    return findings


def test_equal_nodes_are_ok(look, run):
    [(_, state, says)] = look()
    assert state == "ok"
    assert says.startswith("4 nodes (node1, node2, node3, node4) each have ")
    assert list(run.parent.iterdir()) == []


def test_another_version_and_an_apex_that_is_not_nvidias_are_found_on_their_node(look, slurm, tmp_path):
    (tmp_path / "apex").mkdir()
    (tmp_path / "apex/__init__.py").touch()
    information = next(Path(numpy.__file__).parents[1].glob("numpy-*.dist-info"))
    old = shutil.copytree(information, tmp_path / "numpy-1.0.dist-info")
    text = (old / "METADATA").read_text()
    (old / "METADATA").write_text(text.replace(f"\nVersion: {numpy.__version__}\n", "\nVersion: 1.0\n", 1))
    with slurm.given("node3", PYTHONPATH=str(tmp_path)):
        found = look()
    assert {state for _, state, _ in found} == {"fault"}
    assert [says for _, _, says in found] == [
        f"node3 has numpy 1.0 (3 others have {numpy.__version__}): install the same versions on all nodes.",
        "The package apex on node3 is PyPI's, not NVIDIA's, and breaks megatron-core: pip uninstall apex.",
    ]


def test_a_node_that_does_not_see_the_shared_disk_is_named(look, slurm, run):
    with slurm.without("node4", run.parent):
        [(_, state, says)] = look()
    assert state == "fault"
    assert says == f"node4 cannot see this node's files in {run.parent}: put run=FOLDER on a disk that all nodes share."


def test_a_node_without_our_software_is_named(look, slurm):
    with slurm.without("node2", Path(sys.prefix)):
        [(_, state, says)] = look()
    assert state == "fault"
    assert says.startswith("megaptm does not run on node2 (")


LOADED_THREADS = 2
"""Python's own and one of numpy's; torch has more as soon as it multiplies."""


def test_a_node_that_is_halted_most_of_the_time_is_named_as_slow(look, slurm):
    over = threading.Event()
    halting = threading.Thread(target=halt_now_and_then, args=(slurm, "node3", over))
    halting.start()
    expected = {f"{what}: node3 reaches " for what in ("Matrix products", "Links")}
    try:
        for _ in range(3):  # beside other load another node may be as slow for the moment that a rate is measured
            found = look(speed=True)
            slow = [says for topic, state, says in found if (topic, state) == ("speed", "warning")]
            expected = {begin for begin in expected if not any(says.startswith(begin) for says in slow)}
            if not expected:
                break
    finally:
        over.set()
        halting.join()
    assert not expected, found


def halt_now_and_then(slurm, node, over):
    """While it multiplies and sends, the node's process does nothing for nineteen twentieths of the time.

    Not before: to load its libraries would take it a minute.
    """
    probes: list[psutil.Process] = []
    while not over.is_set():
        # Looked for while they still load: beside other load that takes longer than a rate is measured.
        probes = [one for one in probes if is_alive(one)] or speed_probes(slurm, node)
        halted = [one for one in probes if has_loaded(one)]
        send(halted, signal.SIGSTOP)
        time.sleep(0.38 if halted else 0.0)
        send(halted, signal.SIGCONT)
        time.sleep(0.02)


def speed_probes(slurm, node):
    """The node's processes that measure it, from their first moment."""
    return [one for one in slurm.tasks_of(node) if "megaptm.check.speed_probe" in command_of(one)]


def has_loaded(process):
    """Whether a process has loaded what it needs to measure."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.num_threads() > LOADED_THREADS
    return False
