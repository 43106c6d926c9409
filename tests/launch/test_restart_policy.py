"""Automatic restarts of a run."""

import pytest

from megaptm.launch.restart_policy import RestartPolicy, sick_nodes
from megaptm.resilience.events import (
    CheckpointEvent,
    Events,
    HangEvent,
    LaunchEvent,
    NodeLostEvent,
    WorkerLostEvent,
)

HANG = HangEvent(rank=1, phase="step", step=3, seconds=10.0, problem="", stack="")
LOST = WorkerLostEvent(rank=1, code=-9, problem="")
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


def test_third_failure_without_checkpoint_ends_the_run(tmp_path):
    policy = RestartPolicy(tmp_path)
    pauses = []
    with Events(tmp_path) as events:
        for event in (LOST, LOST, SAVED, LOST):
            events.write(event)
            assert policy.may_restart("failed")
            pauses.append(policy.pause)
        events.write(LOST)
        events.write(LOST)
    assert pauses == [0.0, 10.0, 0.0, 0.0]
    assert not policy.may_restart("failed")


def test_lost_nodes_do_not_count_as_retries(tmp_path):
    policy = RestartPolicy(tmp_path, retries=1)
    assert policy.may_restart("node-lost")
    assert policy.may_restart("failed")
    assert not policy.may_restart("failed")
    assert not policy.may_restart("hung")
    assert policy.may_restart("node-lost")


def test_node_with_two_faults_is_sick(tmp_path):
    with Events(tmp_path) as events:
        events.write(WorkerLostEvent(rank=0, code=-9, problem="", node="b"))
        events.write(LaunchEvent(command=(), version="", host="a", pid=1))  # a new job: nodes may be repaired
        events.write(WorkerLostEvent(rank=0, code=-9, problem="", node="b"))
        events.write(HangEvent(rank=1, phase="step", step=3, seconds=10.0, problem="", stack="", node="c"))
        events.write(LOST)
        events.write(LOST)
        assert sick_nodes(tmp_path) == []
        events.write(SAVED)
        events.write(NodeLostEvent(node="c", ranks=[1]))
    assert sick_nodes(tmp_path) == ["c"]
