"""Nodes of an allocation are checked, and those that differ are reported."""

import json
import shutil
import sys
from pathlib import Path

import numpy
import pytest

from tests.real.jobs import small

pytestmark = pytest.mark.real

CHECK = """
import json, sys
from pathlib import Path
from megaptm.check.finding import CheckInput, run_checks
from megaptm.check.nodes import check_nodes
from megaptm.run.folder import read_config

case = CheckInput(config=read_config(Path(sys.argv[1]), sys.argv[2:]))
print(json.dumps([finding.to_json() for finding in run_checks([("nodes", check_nodes)], case)]))
"""


@pytest.fixture
def run(tmp_path):
    """Run folder on its own disk, as far as the tests go."""
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk/run"


@pytest.fixture
def check_allocation(slurm, run, real_corpus):
    """Function that returns the findings in an allocation of all nodes."""

    def findings():
        words = small("gpt2", run, real_corpus("byte-bpe"), "layout.data=4")
        output = slurm.run_in_allocation(4, sys.executable, "-c", CHECK, *words)
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
