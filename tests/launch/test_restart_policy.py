"""When a run is started again by itself."""

import pytest

from megaptm.launch.restart_policy import RestartPolicy
from megaptm.resilience.events import CheckpointEvent, Events, HangEvent

HANG = HangEvent(rank=1, phase="step", step=3, seconds=10.0, problem="", stack="")


@pytest.mark.parametrize(
    ("ending", "progress", "may_restart"),
    [
        ("node-lost", False, True),
        ("interrupted", True, True),
        ("interrupted", False, False),
        ("failed", True, True),
        ("failed", False, False),
        ("hung", False, True),
    ],
)
def test_what_would_end_at_the_same_place_is_not_repeated(tmp_path, ending, progress, may_restart):
    assert RestartPolicy(tmp_path).may_restart(ending, progress=progress) == may_restart


def test_two_hangs_with_nothing_saved_between_are_enough(tmp_path):
    with Events(tmp_path) as events:
        events.write(HANG)
        assert RestartPolicy(tmp_path).may_restart("hung")
        events.write(HANG)
        assert not RestartPolicy(tmp_path).may_restart("hung")
        events.write(CheckpointEvent(step=4, seconds=1.0, bytes=1))
        events.write(HANG)
        assert RestartPolicy(tmp_path).may_restart("hung")


def test_hangs_and_failures_are_counted_and_lost_nodes_are_not(tmp_path):
    policy = RestartPolicy(tmp_path, retries=1)
    assert policy.may_restart("node-lost")
    assert policy.may_restart("failed")
    assert not policy.may_restart("failed")
    assert not policy.may_restart("hung")
    assert policy.may_restart("node-lost")
