"""One start of a run: a watcher on each of its nodes, from the placement of its ranks to the end of the last."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megaptm.errors import UserError
from megaptm.ray.cluster import nodes
from megaptm.ray.crew import Look, Post
from megaptm.ray.placement import Berth
from megaptm.resilience.heartbeat import VARIABLE
from megaptm.resilience.watchdog import Hang, Watchdog
from megaptm.train.verdict import End, failures

WORKER = "megaptm.train.worker"
GRACE_SECONDS = 10.0
"""For ranks to end by themselves when one has failed, and again after they were asked."""
SILENT_SECONDS = 120.0
"""After which a node that does not answer counts as lost, whatever Ray thinks of it."""
GONE_SECONDS = 20.0
"""In which Ray finds out that a node is dead whose processes were the first to go."""
POLL_SECONDS = 0.2


@dataclass
class Watch:
    """A node's watcher, as seen from here."""

    berth: Berth
    actor: Any
    ends: list[End] = field(default_factory=list)
    heard: float = field(default_factory=time.monotonic)
    """When it answered last."""


@dataclass
class Outcome:
    """How a start ended."""

    ends: list[End] = field(default_factory=list)
    """Of ranks that ended by themselves, in the order in which it was heard of."""
    lost: list[Berth] = field(default_factory=list)
    """On nodes that are dead, or do not answer."""
    broken: list[Berth] = field(default_factory=list)
    """Whose watcher died, though the node lives: somebody killed it, or Ray did for memory."""

    hang: Hang | None = None

    @property
    def failed(self) -> bool:
        return bool(self.hang or self.lost or self.broken or failures(self.ends))


class Start:
    """Watchers in the bundles of a placement group. Leaving it ends them, and with them what they watch."""

    def __init__(
        self, berths: Sequence[Berth], group: Any, *, kind: str, run: Path, logs: Path, watchdog: Watchdog
    ) -> None:
        self._run, self._watchdog = run, watchdog
        self._watches = [
            Watch(berth, _post(berth, group, number, kind=kind).remote(WORKER, run, logs))
            for number, berth in enumerate(berths)
        ]
        self.outcome = Outcome()

    def __enter__(self) -> Start:
        return self

    def __exit__(self, *exc: object) -> None:
        import ray

        for watch in self._watches:
            ray.kill(watch.actor)

    def begin(self, environment: Mapping[str, str], *, threads: int | None) -> None:
        """Start all ranks, unless a node is gone already; refuse where a node does not see the run."""
        token = self._run / f".seen-{secrets.token_hex(4)}"
        token.touch()
        try:
            seen = self._each(self._watches, lambda watch: watch.actor.sees.remote(token))
        finally:
            token.unlink(missing_ok=True)
        blind = [watch.berth.node.address for watch, sees in zip(self._watches, seen, strict=True) if sees is False]
        if blind:
            raise UserError(
                f"node {blind[0]} does not see the run folder {self._run}: give run=FOLDER on a disk that all nodes "
                "share."
            )
        first, world = self._watches[0], sum(len(watch.berth.ranks) for watch in self._watches)
        [meeting] = self._each([first], lambda watch: watch.actor.meeting.remote(watch.berth.node.address, world))
        if not self.outcome.failed:
            given = ({**environment, VARIABLE: str(self._watchdog.clear().folder)}, threads)
            self._each(self._watches, lambda watch: watch.actor.start.remote(watch.berth.ranks, meeting, *given))

    def watch(self, asked: Sequence[int]) -> Outcome:
        """Until all have ended, or one has failed or hangs and the others were ended. `asked` grows by signals to pass
        on."""
        passed_on = 0
        waiting = {self._look(watch): watch for watch in self._left()}
        while waiting:
            for number in asked[passed_on:]:
                for watch in self._left():
                    watch.actor.forward.remote(number)
                passed_on += 1
            for watch in self._hear(waiting):
                if not self.outcome.failed:
                    waiting[self._look(watch)] = watch
            self.outcome.hang = self._watchdog.look({end.rank for end in self.outcome.ends}, stopping=bool(asked))
            if self.outcome.hang:
                break
        grace = 0.0 if self.outcome.hang else GRACE_SECONDS  # nobody can save without the one that hangs
        self._finish(lambda watch: watch.actor.end.remote(len(watch.ends), grace))
        if not self.outcome.failed:
            self._finish(lambda watch: watch.actor.release.remote(len(watch.ends)))
        return self.outcome

    def _finish(self, ask: Callable[[Watch], Any]) -> None:
        waiting = {ask(watch): watch for watch in self._left()}
        while waiting:
            waiting |= {ask(watch): watch for watch in self._hear(waiting)}

    def _look(self, watch: Watch) -> Any:
        return watch.actor.look.remote(len(watch.ends))

    def _left(self) -> list[Watch]:
        gone = [*self.outcome.lost, *self.outcome.broken]
        return [watch for watch in self._watches if watch.berth not in gone]

    def _hear(self, waiting: dict[Any, Watch]) -> list[Watch]:
        """Take the answers that are there; those are returned who are to be asked again."""
        import ray

        ready, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=POLL_SECONDS)
        again = []
        for answer in ready:
            watch = waiting.pop(answer)
            try:
                if self._note(watch, ray.get(answer)):
                    again.append(watch)
            except ray.exceptions.ActorUnavailableError:
                time.sleep(POLL_SECONDS)
                again.append(watch)
            except ray.exceptions.RayActorError:
                self._is_dead(watch)
        self._give_up(waiting, again)
        return again

    def _note(self, watch: Watch, look: Look) -> bool:
        watch.heard = time.monotonic()
        watch.ends += look.ends
        self.outcome.ends += look.ends
        for text, stream in ((look.out, sys.stdout), (look.err, sys.stderr)):
            stream.buffer.write(text)
            stream.flush()
        return look.alive

    def _give_up(self, waiting: dict[Any, Watch], again: list[Watch]) -> None:
        """A connection may hang for longer than anybody wants to wait."""
        for answer, watch in list(waiting.items()):
            if time.monotonic() - watch.heard > SILENT_SECONDS:
                del waiting[answer]
                self.outcome.lost.append(watch.berth)
        for watch in [watch for watch in again if time.monotonic() - watch.heard > SILENT_SECONDS]:
            again.remove(watch)
            self.outcome.lost.append(watch.berth)

    def _each(self, watches: Sequence[Watch], ask: Callable[[Watch], Any]) -> list[Any]:
        """Everybody's answer; None from those that are gone."""
        asked = [ask(watch) for watch in watches]
        return [self._answer(watch, answer) for watch, answer in zip(watches, asked, strict=True)]

    def _answer(self, watch: Watch, answer: Any) -> Any:
        import ray

        try:
            found = ray.get(answer, timeout=SILENT_SECONDS)
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
            if getattr(error, "actor_init_failed", False):
                raise _unprepared(watch, error) from None
            if watch in self._left():
                self._is_dead(watch)
            return None
        except (ray.exceptions.RuntimeEnvSetupError, ray.exceptions.RayTaskError) as error:
            if isinstance(error, ray.exceptions.RayTaskError) and "failed to import" not in str(error):
                raise
            raise _unprepared(watch, error) from None
        watch.heard = time.monotonic()
        return found

    def _is_dead(self, watch: Watch) -> None:
        deadline = time.monotonic() + GONE_SECONDS
        while watch.berth.node.id in [node.id for node in nodes()[1]]:
            if time.monotonic() > deadline:
                self.outcome.broken.append(watch.berth)
                return
            time.sleep(POLL_SECONDS)
        self.outcome.lost.append(watch.berth)


def _post(berth: Berth, group: Any, bundle: int, *, kind: str) -> Any:
    """The class of a watcher that has the devices of its ranks."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    share = {"num_gpus": len(berth.ranks)} if kind == "GPU" else {"num_cpus": len(berth.ranks)}
    where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
    options = {"num_cpus": 0, **share, "max_restarts": 0, "scheduling_strategy": where}
    return ray.remote(Post).options(**options)


def _unprepared(watch: Watch, error: Exception) -> UserError:
    said = str(error).strip().splitlines()[-1]
    return UserError(
        f"node {watch.berth.node.address} cannot run megaptm ({said}): use ray job submit with --working-dir, or "
        "install megaptm on every node."
    )
