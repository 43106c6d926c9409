"""Record of what ended a start of a run on Ray."""

import pytest

from megaptm.launch.ray.attempt import AttemptOutcome
from megaptm.launch.ray.placement import RankAssignment
from megaptm.launch.restart_policy import node_faults
from megaptm.resilience.events import Events, RestartEvent, restarts_since_saved
from megaptm.schedulers.ray.cluster import Node


def assignment(number):
    return RankAssignment(Node(f"id{number}", f"10.0.0.{number}", 1, 1), range(number, number + 1))


LOST, BROKEN, LATE = assignment(0), assignment(1), assignment(2)


@pytest.fixture
def outcome():
    return AttemptOutcome(lost=[LOST], broken=[BROKEN], late=[LATE])


def test_late_agent_is_a_failure_of_the_start_and_not_of_its_node(tmp_path, outcome):
    with Events(tmp_path) as events:
        for event in outcome.loss_events(stopping=False):
            events.write(event)
        events.write(RestartEvent(start=2))
    assert restarts_since_saved(tmp_path) == 1
    assert {node: len(times) for node, times in node_faults(tmp_path).items()} == {"10.0.0.0": 1, "10.0.0.1": 1}
    assert "10.0.0.2" in [*outcome.loss_events(stopping=False)][-1].problem


def test_only_lost_nodes_are_recorded_of_a_run_that_stops(outcome):
    assert [event.kind for event in outcome.loss_events(stopping=True)] == ["node-lost"]
