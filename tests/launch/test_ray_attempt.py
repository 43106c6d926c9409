"""Agents that reply late or never, or die; Ray's replies are simulated."""

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


class Reply:
    """Reply of an agent that is available after some seconds."""

    def __init__(self, value: Any, seconds: float) -> None:
        self.value, self.at = value, time.monotonic() + seconds


def wait(replies: list[Reply], *, num_returns: int, timeout: float) -> tuple[list[Reply], list[Reply]]:
    time.sleep(timeout)
    ready = [reply for reply in replies if reply.at <= time.monotonic()]
    return ready, [reply for reply in replies if reply not in ready]


def get(reply: Reply, timeout: float | None = None) -> Any:
    if timeout is not None and reply.at > time.monotonic() + timeout:
        raise ray.exceptions.GetTimeoutError
    if isinstance(reply.value, Exception):
        raise reply.value
    return reply.value


def make_agent(number: int, *, ready: bool = False) -> AgentHandle:
    node = Node(id=f"id{number}", address=f"10.0.0.{number}", devices=1, free=1)
    return AgentHandle(RankAssignment(node, range(number, number + 1)), None, ready=ready)


@pytest.fixture
def ask(monkeypatch, tmp_path):
    """Ask several agents at once; return the replies, the outcome and the agents."""
    for name, seconds in LIMITS.items():
        monkeypatch.setattr(module, name, seconds)
    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "get", get)

    def run(*answers, alive=99, ready=False, signals=()):
        agents = [make_agent(number, ready=ready) for number in range(len(answers))]
        monkeypatch.setattr(
            module, "alive_ray_nodes", lambda: ("CPU", [agent.assignment.node for agent in agents[:alive]])
        )
        attempt = RunAttempt([], None, kind="CPU", run=tmp_path, logs=tmp_path, watchdog=None)
        attempt._agents = agents
        replies = dict(zip((id(agent) for agent in agents), answers, strict=True))
        return attempt._ask_each(agents, lambda agent: Reply(*replies[id(agent)]), signals), attempt.outcome, agents

    return run


def test_slow_agent_is_awaited(ask):
    replies, outcome, agents = ask((True, 0.0), (True, 1.0))
    assert replies == [True, True]
    assert not outcome.failed
    assert all(agent.ready for agent in agents)


def test_agent_that_never_replies_is_late(ask):
    replies, outcome, agents = ask((True, 0.0), (True, 99.0))
    assert replies == [True, None]
    assert outcome.late == [agents[1].assignment]
    assert not outcome.lost + outcome.broken
    assert outcome.failed


def test_agent_that_stops_replying_is_lost_soon(ask):
    started = time.monotonic()
    _, outcome, agents = ask((True, 99.0), ready=True)
    assert outcome.lost == [agents[0].assignment]
    assert time.monotonic() - started < LIMITS["READY_SECONDS"]


def test_signal_ends_the_wait(ask):
    started = time.monotonic()
    assert ask((True, 99.0), signals=[15])[1].late
    assert time.monotonic() - started < LIMITS["READY_SECONDS"]


def test_dead_agents_are_classified_together(ask):
    started = time.monotonic()
    _, outcome, agents = ask(*[(DEAD(), 0.0)] * 8, alive=6)
    assert outcome.broken == [agent.assignment for agent in agents[:6]]
    assert outcome.lost == [agent.assignment for agent in agents[6:]]
    assert time.monotonic() - started < 2 * LIMITS["GONE_SECONDS"]


def test_unprepared_node_is_reported_at_once(ask):
    started = time.monotonic()
    with pytest.raises(UserError, match=r"node 10\.0\.0\.0 cannot run megaptm \(no room\)"):
        ask((ray.exceptions.RuntimeEnvSetupError("no room"), 0.0), (True, 99.0))
    assert time.monotonic() - started < LIMITS["READY_SECONDS"]
