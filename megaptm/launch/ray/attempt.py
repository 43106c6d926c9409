"""One start of a run on Ray: an agent on each node, from the placement of ranks to the end of the last."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from megaptm.errors import EXIT_FAILURE, UserError
from megaptm.launch.ray.node_agent import AgentReport, NodeAgent
from megaptm.launch.ray.placement import RankAssignment
from megaptm.resilience.events import Event, NodeLostEvent, WorkerLostEvent
from megaptm.resilience.failures import ProcessExit, failed_exits
from megaptm.resilience.heartbeat import VARIABLE
from megaptm.resilience.watchdog import Hang, Watchdog
from megaptm.schedulers.ray.cluster import alive_ray_nodes

WORKER = "megaptm.train.worker"
GRACE_SECONDS = 10.0
"""Seconds for ranks to exit by themselves after a failure, and again after SIGTERM."""
READY_SECONDS = 900.0
"""Seconds for the first reply of a node's agent: Ray may install a runtime environment or read from a cold disk
before."""
SILENT_SECONDS = 120.0
"""Seconds without a reply after which a node counts as lost, whatever its state in Ray."""
GONE_SECONDS = 20.0
"""Seconds in which Ray notices the death of a node, after its processes have died."""
POLL_SECONDS = 0.2


@dataclass
class AgentHandle:
    """Agent of a node, as the driver of a run on Ray sees it."""

    assignment: RankAssignment
    actor: Any
    ends: list[ProcessExit] = field(default_factory=list)
    last_reply: float = field(default_factory=time.monotonic)
    """Time of the agent's last reply."""
    ready: bool = False
    """Whether the agent has replied at least once."""


@dataclass
class AttemptOutcome:
    """Result of one start of a run on Ray."""

    ends: list[ProcessExit] = field(default_factory=list)
    """Exits of ranks that ended by themselves, in order of their reports."""
    lost: list[RankAssignment] = field(default_factory=list)
    """Ranks on nodes that are dead or do not reply."""
    broken: list[RankAssignment] = field(default_factory=list)
    """Ranks whose agent died on a living node: killed by a user, or by Ray for lack of memory."""
    late: list[RankAssignment] = field(default_factory=list)
    """Ranks whose agent never replied."""
    hang: Hang | None = None

    @property
    def failed(self) -> bool:
        return bool(self.hang or self.lost or self.broken or self.late or failed_exits(self.ends))

    def loss_events(self, *, stopping: bool) -> Iterator[Event]:
        """Yield the events of lost nodes and, unless the run is stopping, of killed and late agents."""
        for each in self.lost:
            yield NodeLostEvent(node=each.node.address, ranks=list(each.ranks))
        failure = partial(WorkerLostEvent, code=EXIT_FAILURE)
        for each in self.broken if not stopping else ():
            yield failure(rank=each.ranks[0], problem="its agent was killed", node=each.node.address)
        for each in self.late if not stopping else ():  # no fault of the node, so the event has none
            yield failure(rank=each.ranks[0], problem=f"its agent on {each.node.address} was not ready")


class RunAttempt:
    """Start of a run on Ray: agents in the bundles of a placement group. Leaving the context ends the agents and their
    ranks."""

    def __init__(
        self, assignments: Sequence[RankAssignment], group: Any, *, kind: str, run: Path, logs: Path, watchdog: Watchdog
    ) -> None:
        self._run, self._watchdog = run, watchdog
        self._agents = [
            AgentHandle(assignment, _agent_actor_class(assignment, group, index, kind=kind).remote(WORKER, run, logs))
            for index, assignment in enumerate(assignments)
        ]
        self.outcome = AttemptOutcome()

    def __enter__(self) -> RunAttempt:
        return self

    def __exit__(self, *exc: object) -> None:
        import ray

        for agent in self._agents:
            ray.kill(agent.actor)

    def begin(self, environment: Mapping[str, str], *, threads: int | None, signals: Sequence[int] = ()) -> None:
        """Start all ranks of the run, unless a node is already gone. Raise UserError if a node does not see the run
        folder.

        A signal in `signals` ends the wait for agents that are not ready.
        """
        token = self._run / f".seen-{secrets.token_hex(4)}"
        token.touch()
        try:
            visible = self._ask_each(self._agents, lambda agent: agent.actor.path_exists.remote(token), signals)
        finally:
            token.unlink(missing_ok=True)
        blind = [
            agent.assignment.node.address
            for agent, is_visible in zip(self._agents, visible, strict=True)
            if is_visible is False
        ]
        if blind:
            raise UserError(
                f"node {blind[0]} does not see the run folder {self._run}: set run=FOLDER to a folder on a disk that "
                "all nodes share."
            )
        if self.outcome.failed:
            return
        first, world = self._agents[0], sum(len(agent.assignment.ranks) for agent in self._agents)
        [rendezvous] = self._ask_each(
            [first], lambda agent: agent.actor.rendezvous.remote(agent.assignment.node.address, world)
        )
        if not self.outcome.failed:
            settings = ({**environment, VARIABLE: str(self._watchdog.clear().folder)}, threads)
            self._ask_each(
                self._agents, lambda agent: agent.actor.start.remote(agent.assignment.ranks, rendezvous, *settings)
            )

    def run_to_end(self, signals: Sequence[int]) -> AttemptOutcome:
        """Wait until all ranks have exited, or until one fails or hangs and the others were ended. Signals that are
        appended to `signals` are forwarded."""
        num_forwarded = 0
        waiting = {self._poll_agent(agent): agent for agent in self._remaining_agents()}
        while waiting:
            for number in signals[num_forwarded:]:
                for agent in self._remaining_agents():
                    agent.actor.forward.remote(number)
                num_forwarded += 1
            for agent in self._process_replies(waiting):
                if not self.outcome.failed:
                    waiting[self._poll_agent(agent)] = agent
            self.outcome.hang = self._watchdog.check_progress(
                {end.rank for end in self.outcome.ends}, stopping=bool(signals)
            )
            if self.outcome.hang:
                break
        grace = 0.0 if self.outcome.hang else GRACE_SECONDS  # no rank can save without the hung one
        self._collect_replies(lambda agent: agent.actor.end.remote(len(agent.ends), grace))
        if not self.outcome.failed:
            self._collect_replies(lambda agent: agent.actor.release.remote(len(agent.ends)))
        return self.outcome

    def _collect_replies(self, ask: Callable[[AgentHandle], Any]) -> None:
        waiting = {ask(agent): agent for agent in self._remaining_agents()}
        while waiting:
            waiting |= {ask(agent): agent for agent in self._process_replies(waiting)}

    def _poll_agent(self, agent: AgentHandle) -> Any:
        return agent.actor.poll.remote(len(agent.ends))

    def _remaining_agents(self) -> list[AgentHandle]:
        gone = [*self.outcome.lost, *self.outcome.broken, *self.outcome.late]
        return [agent for agent in self._agents if agent.assignment not in gone]

    def _process_replies(self, waiting: dict[Any, AgentHandle]) -> list[AgentHandle]:
        """Process the available replies of agents; return the agents to poll again."""
        import ray

        ready, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=POLL_SECONDS)
        again, dead = [], []
        for reply in ready:
            agent = waiting.pop(reply)
            try:
                if self._record_report(agent, ray.get(reply)):
                    again.append(agent)
            except ray.exceptions.ActorUnavailableError:
                time.sleep(POLL_SECONDS)
                again.append(agent)
            except ray.exceptions.RayActorError:
                dead.append(agent)
        self._classify_dead(dead)
        self._drop_silent(waiting, again)
        return again

    def _record_report(self, agent: AgentHandle, report: AgentReport) -> bool:
        agent.last_reply = time.monotonic()
        agent.ends += report.ends
        self.outcome.ends += report.ends
        for text, stream in ((report.out, sys.stdout), (report.err, sys.stderr)):
            stream.buffer.write(text)
            stream.flush()
        return report.alive

    def _drop_silent(self, waiting: dict[Any, AgentHandle], again: list[AgentHandle]) -> None:
        """Count agents without a recent reply as lost, because a connection to a dead node may block for very long."""
        for pending, agent in list(waiting.items()):
            if time.monotonic() - agent.last_reply > SILENT_SECONDS:
                del waiting[pending]
                self.outcome.lost.append(agent.assignment)
        for agent in [agent for agent in again if time.monotonic() - agent.last_reply > SILENT_SECONDS]:
            again.remove(agent)
            self.outcome.lost.append(agent.assignment)

    def _ask_each(
        self, agents: Sequence[AgentHandle], ask: Callable[[AgentHandle], Any], signals: Sequence[int] = ()
    ) -> list[Any]:
        """Return the reply of each agent; None for dead agents, and for those not awaited because of a signal."""
        import ray

        started, replies = time.monotonic(), dict.fromkeys(range(len(agents)))
        waiting, dead = {ask(agent): number for number, agent in enumerate(agents)}, []
        while waiting:
            for pending in ray.wait(list(waiting), num_returns=len(waiting), timeout=POLL_SECONDS)[0]:
                agent = agents[index := waiting.pop(pending)]
                try:
                    replies[index] = self._get_reply(agent, pending)
                except ray.exceptions.RayActorError:
                    dead.append(agent)
            for pending, index in list(waiting.items()):
                agent = agents[index]
                if signals or time.monotonic() - started > (SILENT_SECONDS if agent.ready else READY_SECONDS):
                    del waiting[pending]
                    (self.outcome.lost if agent.ready else self.outcome.late).append(agent.assignment)
        self._classify_dead(dead)
        return [*replies.values()]

    def _get_reply(self, agent: AgentHandle, pending: Any) -> Any:
        import ray

        try:
            reply = ray.get(pending)
        except ray.exceptions.RayActorError as error:
            if not getattr(error, "actor_init_failed", False):
                raise
            raise _preparation_error(agent, error) from None
        except (ray.exceptions.RuntimeEnvSetupError, ray.exceptions.RayTaskError) as error:
            if isinstance(error, ray.exceptions.RayTaskError) and "failed to import" not in str(error):
                raise
            raise _preparation_error(agent, error) from None
        agent.last_reply, agent.ready = time.monotonic(), True
        return reply

    def _classify_dead(self, agents: Sequence[AgentHandle]) -> None:
        """Classify dead agents: lost, if Ray reports their node dead in time, else broken."""
        deadline, remaining = (
            time.monotonic() + GONE_SECONDS,
            [agent for agent in agents if agent in self._remaining_agents()],
        )
        while remaining:
            alive, is_over = {node.id for node in alive_ray_nodes()[1]}, time.monotonic() > deadline
            self.outcome.lost += [agent.assignment for agent in remaining if agent.assignment.node.id not in alive]
            remaining = [agent for agent in remaining if agent.assignment.node.id in alive]
            if is_over:
                self.outcome.broken += [agent.assignment for agent in remaining]
                return
            time.sleep(POLL_SECONDS if remaining else 0)


def _agent_actor_class(assignment: RankAssignment, group: Any, bundle: int, *, kind: str) -> Any:
    """Return the Ray actor class of an agent that owns the devices of its ranks."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    resources = {"num_gpus": len(assignment.ranks)} if kind == "GPU" else {"num_cpus": len(assignment.ranks)}
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
    options = {"num_cpus": 0, **resources, "max_restarts": 0, "scheduling_strategy": strategy}
    return ray.remote(NodeAgent).options(**options)


def _preparation_error(agent: AgentHandle, error: Exception) -> UserError:
    reason = str(error).strip().splitlines()[-1]
    return UserError(
        f"node {agent.assignment.node.address} cannot run megaptm ({reason}): use ray job submit with --working-dir, "
        "or install megaptm on each node."
    )
