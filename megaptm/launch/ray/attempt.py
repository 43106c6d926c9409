"""One start of a run on Ray: an agent on each node, from the placement of ranks to the end of the last."""

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
"""Seconds for ranks to exit by themselves after a failure, and again after SIGTERM."""
READY_SECONDS = 900.0
"""Seconds for the first reply of an agent: Ray may install a runtime environment or read from a cold disk before."""
SILENT_SECONDS = 120.0
"""Seconds without a reply after which a node counts as lost, whatever its state in Ray."""
GONE_SECONDS = 20.0
"""Seconds in which Ray notices the death of a node, after its processes have died."""
POLL_SECONDS = 0.2


@dataclass
class AgentHandle:
    """Agent of a node, in the driver."""

    assignment: RankAssignment
    actor: Any
    ends: list[ProcessExit] = field(default_factory=list)
    last_answer: float = field(default_factory=time.monotonic)
    """Time of its last reply."""
    ready: bool = False
    """Whether it has ever replied."""


@dataclass
class Outcome:
    """Result of a start."""

    ends: list[ProcessExit] = field(default_factory=list)
    """Ranks that exited by themselves, in order of their reports."""
    lost: list[RankAssignment] = field(default_factory=list)
    """Ranks on nodes that are dead or do not reply."""
    broken: list[RankAssignment] = field(default_factory=list)
    """Ranks whose agent died on a living node: killed by a user, or by Ray for lack of memory."""
    late: list[RankAssignment] = field(default_factory=list)
    """Ranks whose agent never replied."""
    hang: Hang | None = None

    @property
    def failed(self) -> bool:
        return bool(self.hang or self.lost or self.broken or self.late or failures(self.ends))


class RunAttempt:
    """Agents in the bundles of a placement group. Leaving the context ends the agents and their ranks."""

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
        """Start all ranks, unless a node is already gone. Raise UserError if a node does not see the run folder.

        A signal in `asked` ends the wait for agents that are not ready.
        """
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
        """Run until all ranks have exited, or until one fails or hangs and the others were ended. Signals that are
        appended to `asked` are forwarded."""
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
        grace = 0.0 if self.outcome.hang else GRACE_SECONDS  # no rank can save without the hung one
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
        """Process the available replies; return the agents to poll again."""
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
        """Count agents without a recent reply as lost; a connection may block for very long."""
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
        """Return the reply of each agent; None for dead ones, and for those not awaited because of a signal."""
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
        """Classify dead agents: lost, if Ray reports their node dead in time, else broken."""
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
    """Return the actor class of an agent that owns the devices of its ranks."""
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
