"""Automatic restarts of a run."""

import json

import pytest

from megaptm.launch.restart_policy import RestartPolicy, SickNodes, node_faults
from megaptm.resilience.events import (
    FILE,
    CheckpointEvent,
    Events,
    HangEvent,
    LaunchEvent,
    NodeLostEvent,
    RestartEvent,
    WorkerLostEvent,
    restarts_since_saved,
)
from megaptm.storage import now

HANG = HangEvent(rank=1, phase="step", step=3, seconds=10.0, problem="", stack="")
LOST = WorkerLostEvent(rank=1, code=-9, problem="")
LAUNCH = LaunchEvent(command=[], version="", host="", pid=1)
RESTART = RestartEvent(start=2)
SAVED = CheckpointEvent(step=4, seconds=1.0, bytes=1)


@pytest.mark.parametrize(
    ("ending", "progress", "may_restart"),
    [
        ("node-lost", False, True),
        ("interrupted", True, True),
        ("interrupted", False, False),
        ("failed", False, True),
        ("hung", False, True),
    ],
)
def test_interrupted_job_continues_only_after_progress(tmp_path, ending, progress, may_restart):
    assert RestartPolicy(tmp_path).may_restart(ending, progress=progress) == may_restart


def test_second_hang_without_checkpoint_ends_the_run(tmp_path):
    with Events(tmp_path) as events:
        events.write(HANG)
        assert RestartPolicy(tmp_path).may_restart("hung")
        events.write(HANG)
        assert not RestartPolicy(tmp_path).may_restart("hung")
        events.write(SAVED)
        events.write(HANG)
        assert RestartPolicy(tmp_path).may_restart("hung")


def test_restarts_without_a_new_checkpoint_are_limited(tmp_path):
    policy = RestartPolicy(tmp_path, restarts=4)
    pauses = []
    for _ in range(4):
        assert policy.may_restart("failed")
        pauses.append(policy.pause)
    assert pauses == [0.0, 10.0, 60.0, 60.0]
    assert "(restart 4 of 4 without a new checkpoint)" in policy.describe_restart()
    assert not policy.may_restart("failed")
    with Events(tmp_path) as events:
        events.write(SAVED)
    assert policy.may_restart("failed")
    assert policy.describe_restart() == (
        "Starting all ranks again from the checkpoint of step 4 (restart 1 of 4 without a new checkpoint)."
    )


def test_restarts_are_counted_from_the_journal(tmp_path):
    """A job of Slurm has a new process after each start."""
    counts = []
    with Events(tmp_path) as events:
        for event in (LOST, RESTART, HANG, RESTART, LOST, LOST, RESTART, LOST, SAVED, LOST, RESTART, LOST, LAUNCH):
            events.write(event)
            counts.append(restarts_since_saved(tmp_path))
    assert counts == [0, 1, 1, 2, 2, 2, 3, 3, 0, 0, 1, 1, 0]
    with Events(tmp_path) as events:
        for event in (NodeLostEvent(node="c", ranks=[1]), RESTART):
            events.write(event)
    assert restarts_since_saved(tmp_path) == 0


def test_lost_nodes_do_not_count_as_restarts(tmp_path):
    policy = RestartPolicy(tmp_path, restarts=1)
    assert policy.may_restart("node-lost")
    assert policy.may_restart("failed")
    assert not policy.may_restart("failed")
    assert not policy.may_restart("hung")
    assert policy.may_restart("node-lost")


def lost_on(node):
    return WorkerLostEvent(rank=0, code=-9, problem="", node=node)


def test_node_is_excluded_after_two_failed_starts(tmp_path):
    sick = SickNodes(tmp_path, hours=24.0)
    with Events(tmp_path) as events:
        events.write(lost_on("b"))
        events.write(lost_on("b"))
        events.write(HangEvent(rank=1, phase="step", step=3, seconds=10.0, problem="", stack="", node="c"))
        events.write(LOST)
        events.write(RESTART)
        events.write(LOST)
        assert {node: len(times) for node, times in node_faults(tmp_path).items()} == {"b": 1, "c": 1}
        assert sick.exclude() == []
        events.write(SAVED)
        events.write(NodeLostEvent(node="c", ranks=[1]))
    assert sick.exclude() == ["c"]
    assert sick.exclude() == []
    assert sick.excluded == ["c"]


def test_released_node_is_excluded_only_after_a_new_fault(tmp_path):
    sick = SickNodes(tmp_path, hours=24.0)
    with Events(tmp_path) as events:
        for event in (lost_on("b"), RESTART, lost_on("b")):
            events.write(event)
        assert sick.exclude() == sick.release() == ["b"]
        assert sick.exclude() == []
        for event in (RESTART, lost_on("c")):
            events.write(event)
        assert sick.exclude() == sick.excluded == []
        for event in (RESTART, lost_on("b")):
            events.write(event)
    assert sick.exclude() == ["b"]


def test_node_of_the_wrong_type_is_no_fault(tmp_path):
    event = {"time": now(), "kind": "worker-lost", "rank": 0, "code": -9, "node": ["b"]}
    (tmp_path / FILE).write_text(json.dumps(event) + "\n")
    assert node_faults(tmp_path) == {}


@pytest.mark.parametrize(("hours", "excluded"), [(24.0, ["b"]), (2.0, []), (0.0, [])])
def test_old_faults_do_not_count(tmp_path, hours, excluded):
    times = (now() - 3 * 3600, now())
    events = [{"kind": "launch"}, {"kind": "worker-lost", "rank": 0, "code": -9, "node": "b"}]
    lines = [json.dumps({"time": time, **event}) for time in times for event in events]
    (tmp_path / FILE).write_text("\n".join(lines) + "\n")
    assert SickNodes(tmp_path, hours=hours).exclude() == excluded
