"""Nodes compared: this machine's own answer, given by several nodes of which one is changed."""

from copy import deepcopy

import pytest

from megaptm.check.node_probe import Answers, probe_nodes
from megaptm.check.nodes import Asked, compare

NODES = ("node1", "node2", "node3", "node4")
SEEN = Asked(folders=("/data/web",), places=("/runs/one",), token="/runs")


@pytest.fixture(scope="module")
def alone():
    return probe_nodes("megaptm.check.node", seconds=60)


@pytest.fixture
def say(alone):
    """The findings when node3 says this instead."""

    def compared(*, silent=None, **changed):
        [own] = alone.by_node.values()
        said = {node: deepcopy(own) for node in NODES}
        said["node3"] |= changed
        for node in silent or {}:
            del said[node]
        answers = Answers(by_node=said, silent=silent or {}, begin=alone.begin, end=alone.end, everywhere=True)
        return list(compare(answers, SEEN))

    return compared


def test_nodes_that_are_alike_are_one_good_finding(say):
    [finding] = say()
    assert finding.state == "good"
    assert finding.says.startswith("4 nodes (node1, node2, node3, node4) have each ")


def test_this_machine_alone_is_told(alone):
    [finding] = compare(alone, SEEN)
    assert (finding.state, alone.everywhere) == ("good", False)


def fault_of(findings):
    [finding] = findings
    assert finding.state == "fault"
    return finding.says


def test_a_node_with_another_version_is_named_with_both(say, alone):
    [own] = alone.by_node.values()
    versions = {**own["versions"], "torch": "2.9.0"}
    assert fault_of(say(versions=versions)) == (
        f"node3 has torch 2.9.0 (3 others have {own['versions']['torch']}): install the same on all nodes."
    )
    del versions["torch"]
    assert "node3 has no torch (3 others have" in fault_of(say(versions=versions))


def test_a_clock_is_wrong_by_what_it_lies_outside_of_the_question(say, alone):
    assert fault_of(say(clock=alone.end + 75)).startswith("The clock of node3 is at least 75 s ahead of that of this")
    [behind] = say(clock=alone.begin - 8)
    assert behind.says.startswith("The clock of node3 is at least 8 s behind that of this")
    assert behind.state == "warning"
    assert [finding.state for finding in say(clock=alone.end + 0.5)] == ["good"]


def test_a_node_without_the_shared_disk_is_named(say):
    assert fault_of(say(sees_token=False)).startswith("node3 cannot see what is in /runs here")
    assert fault_of(say(unseen=[0])).startswith("node3 cannot see /data/web")
    assert fault_of(say(closed=[0])).startswith("node3 may not write to /runs/one")


def test_a_node_that_says_nothing_is_named_with_its_last_words(say):
    assert fault_of(say(silent={"node2": "ModuleNotFoundError: No module named 'torch'"})) == (
        "megaptm does not run on node2 (ModuleNotFoundError: No module named 'torch'): "
        "mend that node, or leave it out (Slurm: --exclude)."
    )


def test_less_hardware_than_usual_is_named(say):
    [cpus, memory] = say(cpus=0, memory_bytes=2**30)
    assert (cpus.state, memory.state) == ("warning", "warning")
    assert cpus.says.startswith("node3 has 0 CPUs, 3 others have")
    assert memory.says.startswith("node3 has 1 GiB of memory, 3 others have")


def test_a_node_that_misses_a_gpu_is_named(alone):
    [own] = alone.by_node.values()
    gpus = {"torch_cuda": "13.0", "driver_cuda": "13.0", "driver": "580.95.05"}
    said = {node: {**own, **gpus, "gpus": ["NVIDIA H200"] * 8} for node in NODES}
    said["node3"]["gpus"] = said["node3"]["gpus"][:7]
    answers = Answers(by_node=said, silent={}, begin=alone.begin, end=alone.end, everywhere=True)
    assert fault_of(compare(answers, SEEN)) == (
        "node3 has 7 x NVIDIA H200, 3 others have 8 x NVIDIA H200. Leave it out (Slurm: --exclude)."
    )


def test_what_cannot_work_is_said_once_for_all_its_nodes(alone):
    [own] = alone.by_node.values()
    fused = {**own["fused"], "NVIDIA apex": "other"}
    answers = Answers(
        by_node={node: {**own, "fused": fused} for node in NODES},
        silent={},
        begin=alone.begin,
        end=alone.end,
        everywhere=True,
    )
    assert fault_of(compare(answers, SEEN)).startswith("The apex on node1, node2, node3, node4 is PyPI's")
