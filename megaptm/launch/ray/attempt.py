"""One start of a run: an agent on each of its nodes, from the placement of its ranks to the end of the last."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megaptm.errors import UserError
from megaptm.launch.ray.node_agent import AgentReport, NodeAgent
from megaptm.launch.ray.placement import RankAssignment
from megaptm.resilience.failures import ProcessExit, failures
from megaptm.resilience.heartbeat import VARIABLE
from megaptm.resilience.watchdog import Hang, Watchdog
from megaptm.schedulers.ray.cluster import nodes

WORKER = "megaptm.train.worker"
GRACE_SECONDS = 10.0
"""For ranks to end by themselves when one has failed, and again after they were asked."""
SILENT_SECONDS = 120.0
"""After which a node that does not answer counts as lost, whatever Ray thinks of it."""
GONE_SECONDS = 20.0
"""In which Ray finds out that a node is dead whose processes were the first to go."""
POLL_SECONDS = 0.2


@dataclass
class AgentHandle:
    """The agent of a node, as the driver sees it."""

    assignment: RankAssignment
    actor: Any
    ends: list[ProcessExit] = field(default_factory=list)
    heard: float = field(default_factory=time.monotonic)
    """When it answered last."""


@dataclass
class Outcome:
    """How a start ended."""

    ends: list[ProcessExit] = field(default_factory=list)
    """Of ranks that ended by themselves, in the order in which it was heard of."""
    lost: list[RankAssignment] = field(default_factory=list)
    """On nodes that are dead, or do not answer."""
    broken: list[RankAssignment] = field(default_factory=list)
    """Whose agent died, though the node lives: somebody killed it, or Ray did for memory."""

    hang: Hang | None = None

    @property
    def failed(self) -> bool:
        return bool(self.hang or self.lost or self.broken or failures(self.ends))


class RunAttempt:
    """Agents in the bundles of a placement group. Leaving it ends them, and with them their ranks."""

    def __init__(
        self, assignments: Sequence[RankAssignment], group: Any, *, kind: str, run: Path, logs: Path, watchdog: Watchdog
    ) -> None:
        self._run, self._watchdog = run, watchdog
        self._agents = [
            AgentHandle(assignment, _agent_class(assignment, group, number, kind=kind).remote(WORKER, run, logs))
            for number, assignment in enumerate(assignments)
        ]
        self.outcome = Outcome()

    def __enter__(self) -> RunAttempt:
        return self

    def __exit__(self, *exc: object) -> None:
        import ray

        for agent in self._agents:
            ray.kill(agent.actor)

    def begin(self, environment: Mapping[str, str], *, threads: int | None) -> None:
        """Start all ranks, unless a node is gone already; refuse where a node does not see the run."""
        token = self._run / f".seen-{secrets.token_hex(4)}"
        token.touch()
        try:
            seen = self._each(self._agents, lambda agent: agent.actor.sees.remote(token))
        finally:
            token.unlink(missing_ok=True)
        blind = [agent.assignment.node.address for agent, sees in zip(self._agents, seen, strict=True) if sees is False]
        if blind:
            raise UserError(
                f"node {blind[0]} does not see the run folder {self._run}: give run=FOLDER on a disk that all nodes "
                "share."
            )
        first, world = self._agents[0], sum(len(agent.assignment.ranks) for agent in self._agents)
        [rendezvous] = self._each(
            [first], lambda agent: agent.actor.rendezvous.remote(agent.assignment.node.address, world)
        )
        if not self.outcome.failed:
            given = ({**environment, VARIABLE: str(self._watchdog.clear().folder)}, threads)
            self._each(self._agents, lambda agent: agent.actor.start.remote(agent.assignment.ranks, rendezvous, *given))

    def run_to_end(self, asked: Sequence[int]) -> Outcome:
        """Until all have ended, or one has failed or hangs and the others were ended. `asked` grows by signals to pass
        on."""
        passed_on = 0
        waiting = {self._look(agent): agent for agent in self._left()}
        while waiting:
            for number in asked[passed_on:]:
                for agent in self._left():
                    agent.actor.forward.remote(number)
                passed_on += 1
            for agent in self._take_answers(waiting):
                if not self.outcome.failed:
                    waiting[self._look(agent)] = agent
            self.outcome.hang = self._watchdog.look({end.rank for end in self.outcome.ends}, stopping=bool(asked))
            if self.outcome.hang:
                break
        grace = 0.0 if self.outcome.hang else GRACE_SECONDS  # nobody can save without the one that hangs
        self._finish(lambda agent: agent.actor.end.remote(len(agent.ends), grace))
        if not self.outcome.failed:
            self._finish(lambda agent: agent.actor.release.remote(len(agent.ends)))
        return self.outcome

    def _finish(self, ask: Callable[[AgentHandle], Any]) -> None:
        waiting = {ask(agent): agent for agent in self._left()}
        while waiting:
            waiting |= {ask(agent): agent for agent in self._take_answers(waiting)}

    def _look(self, agent: AgentHandle) -> Any:
        return agent.actor.look.remote(len(agent.ends))

    def _left(self) -> list[AgentHandle]:
        gone = [*self.outcome.lost, *self.outcome.broken]
        return [agent for agent in self._agents if agent.assignment not in gone]

    def _take_answers(self, waiting: dict[Any, AgentHandle]) -> list[AgentHandle]:
        """Take the answers that are there; those are returned who are to be asked again."""
        import ray

        ready, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=POLL_SECONDS)
        again = []
        for answer in ready:
            agent = waiting.pop(answer)
            try:
                if self._note(agent, ray.get(answer)):
                    again.append(agent)
            except ray.exceptions.ActorUnavailableError:
                time.sleep(POLL_SECONDS)
                again.append(agent)
            except ray.exceptions.RayActorError:
                self._is_dead(agent)
        self._give_up(waiting, again)
        return again

    def _note(self, agent: AgentHandle, look: AgentReport) -> bool:
        agent.heard = time.monotonic()
        agent.ends += look.ends
        self.outcome.ends += look.ends
        for text, stream in ((look.out, sys.stdout), (look.err, sys.stderr)):
            stream.buffer.write(text)
            stream.flush()
        return look.alive

    def _give_up(self, waiting: dict[Any, AgentHandle], again: list[AgentHandle]) -> None:
        """A connection may hang for longer than anybody wants to wait."""
        for answer, agent in list(waiting.items()):
            if time.monotonic() - agent.heard > SILENT_SECONDS:
                del waiting[answer]
                self.outcome.lost.append(agent.assignment)
        for agent in [agent for agent in again if time.monotonic() - agent.heard > SILENT_SECONDS]:
            again.remove(agent)
            self.outcome.lost.append(agent.assignment)

    def _each(self, agents: Sequence[AgentHandle], ask: Callable[[AgentHandle], Any]) -> list[Any]:
        """The answer of each; None from those that are gone."""
        asked = [ask(agent) for agent in agents]
        return [self._answer(agent, answer) for agent, answer in zip(agents, asked, strict=True)]

    def _answer(self, agent: AgentHandle, answer: Any) -> Any:
        import ray

        try:
            found = ray.get(answer, timeout=SILENT_SECONDS)
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
            if getattr(error, "actor_init_failed", False):
                raise _unprepared(agent, error) from None
            if agent in self._left():
                self._is_dead(agent)
            return None
        except (ray.exceptions.RuntimeEnvSetupError, ray.exceptions.RayTaskError) as error:
            if isinstance(error, ray.exceptions.RayTaskError) and "failed to import" not in str(error):
                raise
            raise _unprepared(agent, error) from None
        agent.heard = time.monotonic()
        return found

    def _is_dead(self, agent: AgentHandle) -> None:
        deadline = time.monotonic() + GONE_SECONDS
        while agent.assignment.node.id in [node.id for node in nodes()[1]]:
            if time.monotonic() > deadline:
                self.outcome.broken.append(agent.assignment)
                return
            time.sleep(POLL_SECONDS)
        self.outcome.lost.append(agent.assignment)


def _agent_class(assignment: RankAssignment, group: Any, bundle: int, *, kind: str) -> Any:
    """Of an agent that has the devices of its ranks."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    share = {"num_gpus": len(assignment.ranks)} if kind == "GPU" else {"num_cpus": len(assignment.ranks)}
    where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
    options = {"num_cpus": 0, **share, "max_restarts": 0, "scheduling_strategy": where}
    return ray.remote(NodeAgent).options(**options)


def _unprepared(agent: AgentHandle, error: Exception) -> UserError:
    said = str(error).strip().splitlines()[-1]
    return UserError(
        f"node {agent.assignment.node.address} cannot run megaptm ({said}): use ray job submit with --working-dir, or "
        "install megaptm on every node."
    )
