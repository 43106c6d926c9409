"""Comparison of nodes: several copies of this machine's reply, one of them changed."""

from copy import deepcopy

import pytest

from megaptm.check.node_probe import NodeReplies, probe_nodes
from megaptm.check.nodes import ProbedPaths, compare_nodes

NODES = ("node1", "node2", "node3", "node4")
PATHS = ProbedPaths(visible=("/data/web",), writable=("/runs/one",), token="/runs")


@pytest.fixture(scope="module")
def alone():
    return probe_nodes("megaptm.check.node_facts", seconds=60)


@pytest.fixture
def compare_changed(alone):
    """Return the findings if node3 has other facts, or some nodes are silent."""

    def compare(*, silent=None, **changed):
        [own] = alone.by_node.values()
        by_node = {node: deepcopy(own) for node in NODES if node not in (silent or {})}
        by_node["node3"] |= changed
        replies = NodeReplies(by_node=by_node, silent=silent or {}, begin=alone.begin, end=alone.end, all_nodes=True)
        return list(compare_nodes(replies, PATHS))

    return compare


def test_equal_nodes_are_ok(compare_changed):
    [finding] = compare_changed()
    assert finding.state == "ok"
    assert finding.message.startswith("4 nodes (node1, node2, node3, node4) each have ")


def test_this_machine_is_ok(alone):
    [finding] = compare_nodes(alone, PATHS)
    assert finding.state == "ok"
    assert not alone.all_nodes


def fault_of(findings):
    [finding] = findings
    assert finding.state == "fault"
    return finding.message


def test_other_version_is_a_fault(compare_changed, alone):
    [own] = alone.by_node.values()
    versions = {**own["versions"], "torch": "2.9.0"}
    assert fault_of(compare_changed(versions=versions)) == (
        f"node3 has torch 2.9.0 (3 others have {own['versions']['torch']}): install the same versions on all nodes."
    )
    del versions["torch"]
    assert "node3 has no torch (3 others have" in fault_of(compare_changed(versions=versions))


def test_clock_offset_is_a_warning_and_a_large_one_a_fault(compare_changed, alone):
    assert fault_of(compare_changed(clock=alone.end + 75)).startswith(
        "The clock of node3 is at least 75 s ahead of that of this"
    )
    [behind] = compare_changed(clock=alone.begin - 8)
    assert behind.message.startswith("The clock of node3 is at least 8 s behind that of this")
    assert behind.state == "warning"
    assert [finding.state for finding in compare_changed(clock=alone.end + 0.5)] == ["ok"]


def test_node_without_the_shared_disk_is_a_fault(compare_changed):
    assert fault_of(compare_changed(sees_token=False)).startswith("node3 cannot see this node's files in /runs:")
    assert fault_of(compare_changed(invisible=[0])).startswith("node3 cannot see /data/web")
    assert fault_of(compare_changed(unwritable=[0])).startswith("node3 cannot write to /runs/one")


def test_silent_node_is_a_fault_with_its_last_line(compare_changed):
    assert fault_of(compare_changed(silent={"node2": "ModuleNotFoundError: No module named 'torch'"})) == (
        "megaptm does not run on node2 (ModuleNotFoundError: No module named 'torch'): "
        "repair the node, or exclude it (Slurm: --exclude)."
    )


def test_less_hardware_than_usual_is_a_warning(compare_changed):
    [cpus, memory] = compare_changed(cpus=0, memory_bytes=2**30)
    assert cpus.state == "warning"
    assert memory.state == "warning"
    assert cpus.message.startswith("node3 has 0 CPUs, 3 others have")
    assert memory.message.startswith("node3 has 1 GiB of memory, 3 others have")


def test_missing_gpu_is_a_fault(alone):
    [own] = alone.by_node.values()
    gpus = {"torch_cuda": "13.0", "driver_cuda": "13.0", "driver": "580.95.05"}
    by_node = {node: {**own, **gpus, "gpus": ["NVIDIA H200"] * 8} for node in NODES}
    by_node["node3"]["gpus"] = by_node["node3"]["gpus"][:7]
    replies = NodeReplies(by_node=by_node, silent={}, begin=alone.begin, end=alone.end, all_nodes=True)
    assert fault_of(compare_nodes(replies, PATHS)) == (
        "node3 has 7 x NVIDIA H200, 3 others have 8 x NVIDIA H200. Exclude it (Slurm: --exclude)."
    )


def test_unusable_software_is_one_fault_for_all_its_nodes(alone):
    [own] = alone.by_node.values()
    fused = {**own["fused"], "NVIDIA apex": "other"}
    replies = NodeReplies(
        by_node={node: {**own, "fused": fused} for node in NODES},
        silent={},
        begin=alone.begin,
        end=alone.end,
        all_nodes=True,
    )
    assert fault_of(compare_nodes(replies, PATHS)).startswith(
        "The package apex on node1, node2, node3, node4 is PyPI's"
    )
