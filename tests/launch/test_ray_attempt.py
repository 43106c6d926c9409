"""Agents that answer late, never, or die, as the driver judges them; Ray's answers are made up."""

from __future__ import annotations

import time
from typing import Any

import pytest
import ray

from megaptm.errors import UserError
from megaptm.launch.ray import attempt as module
from megaptm.launch.ray.attempt import AgentHandle, RunAttempt
from megaptm.launch.ray.placement import RankAssignment
from megaptm.schedulers.ray.cluster import Node

DEAD = ray.exceptions.RayActorError
LIMITS = {"READY_SECONDS": 1.5, "SILENT_SECONDS": 0.3, "GONE_SECONDS": 0.4, "POLL_SECONDS": 0.02}


class Answer:
    """What an agent says, from some time on."""

    def __init__(self, said: Any, seconds: float) -> None:
        self.said, self.at = said, time.monotonic() + seconds


def wait(answers: list[Answer], *, num_returns: int, timeout: float) -> tuple[list[Answer], list[Answer]]:
    time.sleep(timeout)
    there = [one for one in answers if one.at <= time.monotonic()]
    return there, [one for one in answers if one not in there]


def get(answer: Answer, timeout: float | None = None) -> Any:
    if timeout is not None and answer.at > time.monotonic() + timeout:
        raise ray.exceptions.GetTimeoutError
    if isinstance(answer.said, Exception):
        raise answer.said
    return answer.said


def agent_of(number: int, *, ready: bool = False) -> AgentHandle:
    node = Node(id=f"id{number}", address=f"10.0.0.{number}", devices=1, free=1)
    return AgentHandle(RankAssignment(node, range(number, number + 1)), None, ready=ready)


@pytest.fixture
def ask(monkeypatch, tmp_path):
    """Ask agents at once, each of whom says something after some seconds; what was answered, and what is judged."""
    for name, seconds in LIMITS.items():
        monkeypatch.setattr(module, name, seconds)
    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "get", get)

    def run(*answers, alive=99, ready=False, asked=()):
        agents = [agent_of(number, ready=ready) for number in range(len(answers))]
        monkeypatch.setattr(module, "alive_nodes", lambda: ("CPU", [one.assignment.node for one in agents[:alive]]))
        attempt = RunAttempt([], None, kind="CPU", run=tmp_path, logs=tmp_path, watchdog=None)
        attempt._agents = agents
        said = dict(zip((id(one) for one in agents), answers, strict=True))
        return attempt._ask_each(agents, lambda agent: Answer(*said[id(agent)]), asked), attempt.outcome, agents

    return run


def test_an_agent_that_is_ready_late_is_waited_for(ask):
    answers, outcome, agents = ask((True, 0.0), (True, 1.0))
    assert answers == [True, True]
    assert not outcome.failed
    assert all(one.ready for one in agents)


def test_one_that_never_answers_is_late_and_nothing_else(ask):
    answers, outcome, agents = ask((True, 0.0), (True, 99.0))
    assert (answers, outcome.late) == ([True, None], [agents[1].assignment])
    assert not outcome.lost + outcome.broken
    assert outcome.failed


def test_one_that_has_answered_before_is_not_waited_for_as_long(ask):
    begun = time.monotonic()
    _, outcome, agents = ask((True, 99.0), ready=True)
    assert outcome.lost == [agents[0].assignment]
    assert time.monotonic() - begun < LIMITS["READY_SECONDS"]


def test_a_signal_ends_the_wait(ask):
    begun = time.monotonic()
    assert ask((True, 99.0), asked=[15])[1].late
    assert time.monotonic() - begun < LIMITS["READY_SECONDS"]


def test_the_dead_are_judged_all_at_once(ask):
    begun = time.monotonic()
    _, outcome, agents = ask(*[(DEAD(), 0.0)] * 8, alive=6)
    assert outcome.broken == [one.assignment for one in agents[:6]]
    assert outcome.lost == [one.assignment for one in agents[6:]]
    assert time.monotonic() - begun < 2 * LIMITS["GONE_SECONDS"]


def test_a_node_that_cannot_run_it_is_told_while_others_are_waited_for(ask):
    begun = time.monotonic()
    with pytest.raises(UserError, match=r"node 10\.0\.0\.0 cannot run megaptm \(no room\)"):
        ask((ray.exceptions.RuntimeEnvSetupError("no room"), 0.0), (True, 99.0))
    assert time.monotonic() - begun < LIMITS["READY_SECONDS"]
