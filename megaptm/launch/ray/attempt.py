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
READY_SECONDS = 900.0
"""In which an agent must answer for the first time: Ray may install a runtime environment before, or read from a cold
disk."""
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
    last_answer: float = field(default_factory=time.monotonic)
    """When it answered last."""
    ready: bool = False
    """Whether it ever did."""


@dataclass
class Outcome:
    """How a start ended."""

    ends: list[ProcessExit] = field(default_factory=list)
    """Of ranks that ended by themselves, in the order in which it was heard of."""
    lost: list[RankAssignment] = field(default_factory=list)
    """On nodes that are dead, or do not answer."""
    broken: list[RankAssignment] = field(default_factory=list)
    """Whose agent died, though the node lives: somebody killed it, or Ray did for memory."""
    late: list[RankAssignment] = field(default_factory=list)
    """Whose agent never answered."""
    hang: Hang | None = None

    @property
    def failed(self) -> bool:
        return bool(self.hang or self.lost or self.broken or self.late or failures(self.ends))


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

    def begin(self, environment: Mapping[str, str], *, threads: int | None, asked: Sequence[int] = ()) -> None:
        """Start all ranks, unless a node is gone already; refuse where a node does not see the run. A signal, which
        `asked` then has, ends the wait for agents that are not ready."""
        token = self._run / f".seen-{secrets.token_hex(4)}"
        token.touch()
        try:
            seen = self._each(self._agents, lambda agent: agent.actor.sees.remote(token), asked)
        finally:
            token.unlink(missing_ok=True)
        blind = [agent.assignment.node.address for agent, sees in zip(self._agents, seen, strict=True) if sees is False]
        if blind:
            raise UserError(
                f"node {blind[0]} does not see the run folder {self._run}: give run=FOLDER on a disk that all nodes "
                "share."
            )
        if self.outcome.failed:
            return
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
        gone = [*self.outcome.lost, *self.outcome.broken, *self.outcome.late]
        return [agent for agent in self._agents if agent.assignment not in gone]

    def _take_answers(self, waiting: dict[Any, AgentHandle]) -> list[AgentHandle]:
        """Take the answers that are there; those are returned who are to be asked again."""
        import ray

        ready, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=POLL_SECONDS)
        again, dead = [], []
        for answer in ready:
            agent = waiting.pop(answer)
            try:
                if self._note(agent, ray.get(answer)):
                    again.append(agent)
            except ray.exceptions.ActorUnavailableError:
                time.sleep(POLL_SECONDS)
                again.append(agent)
            except ray.exceptions.RayActorError:
                dead.append(agent)
        self._are_dead(dead)
        self._give_up(waiting, again)
        return again

    def _note(self, agent: AgentHandle, look: AgentReport) -> bool:
        agent.last_answer = time.monotonic()
        agent.ends += look.ends
        self.outcome.ends += look.ends
        for text, stream in ((look.out, sys.stdout), (look.err, sys.stderr)):
            stream.buffer.write(text)
            stream.flush()
        return look.alive

    def _give_up(self, waiting: dict[Any, AgentHandle], again: list[AgentHandle]) -> None:
        """A connection may hang for longer than anybody wants to wait."""
        for answer, agent in list(waiting.items()):
            if time.monotonic() - agent.last_answer > SILENT_SECONDS:
                del waiting[answer]
                self.outcome.lost.append(agent.assignment)
        for agent in [agent for agent in again if time.monotonic() - agent.last_answer > SILENT_SECONDS]:
            again.remove(agent)
            self.outcome.lost.append(agent.assignment)

    def _each(
        self, agents: Sequence[AgentHandle], ask: Callable[[AgentHandle], Any], asked: Sequence[int] = ()
    ) -> list[Any]:
        """The answer of each; None from those that are gone, or are not awaited because of a signal."""
        import ray

        begun, answers = time.monotonic(), dict.fromkeys(range(len(agents)))
        waiting, dead = {ask(agent): number for number, agent in enumerate(agents)}, []
        while waiting:
            for answer in ray.wait(list(waiting), num_returns=len(waiting), timeout=POLL_SECONDS)[0]:
                agent = agents[number := waiting.pop(answer)]
                try:
                    answers[number] = self._answer(agent, answer)
                except ray.exceptions.RayActorError:
                    dead.append(agent)
            for answer, number in list(waiting.items()):
                agent = agents[number]
                if asked or time.monotonic() - begun > (SILENT_SECONDS if agent.ready else READY_SECONDS):
                    del waiting[answer]
                    (self.outcome.lost if agent.ready else self.outcome.late).append(agent.assignment)
        self._are_dead(dead)
        return [*answers.values()]

    def _answer(self, agent: AgentHandle, answer: Any) -> Any:
        import ray

        try:
            found = ray.get(answer)
        except ray.exceptions.RayActorError as error:
            if not getattr(error, "actor_init_failed", False):
                raise
            raise _unprepared(agent, error) from None
        except (ray.exceptions.RuntimeEnvSetupError, ray.exceptions.RayTaskError) as error:
            if isinstance(error, ray.exceptions.RayTaskError) and "failed to import" not in str(error):
                raise
            raise _unprepared(agent, error) from None
        agent.last_answer, agent.ready = time.monotonic(), True
        return found

    def _are_dead(self, agents: Sequence[AgentHandle]) -> None:
        """Their nodes are, too, if Ray says so in time."""
        deadline, left = time.monotonic() + GONE_SECONDS, [agent for agent in agents if agent in self._left()]
        while left:
            alive, over = {node.id for node in nodes()[1]}, time.monotonic() > deadline
            self.outcome.lost += [agent.assignment for agent in left if agent.assignment.node.id not in alive]
            left = [agent for agent in left if agent.assignment.node.id in alive]
            if over:
                self.outcome.broken += [agent.assignment for agent in left]
                return
            time.sleep(POLL_SECONDS if left else 0)


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
