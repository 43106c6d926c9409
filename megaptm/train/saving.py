"""Checkpoints of a run: found and restored at the start, saved by all ranks together."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from megaptm import __version__
from megaptm.checkpoint.host import HostCopies
from megaptm.checkpoint.store import Store
from megaptm.config import Config
from megaptm.parallel import state
from megaptm.parallel.background import Background
from megaptm.parallel.engine import Engine
from megaptm.parallel.world import from_rank_0, wait_for_all
from megaptm.plan.count import count
from megaptm.resilience.events import CheckpointEvent, DamagedCheckpointEvent, Events, ResumeEvent, StartEvent
from megaptm.resilience.lock import RunLock
from megaptm.train.environment import Environment
from megaptm.train.feed import Feed
from megaptm.train.identity import identity, refuse_another, refuse_other_text


class Saver:
    """The run's store as one rank sees it; rank 0 has the lock and the journal."""

    def __init__(
        self,
        run: Path,
        config: Config,
        engine: Engine,
        feed: Feed,
        place: Environment,
        *,
        lock: RunLock | None,
        events: Events | None,
    ) -> None:
        self.config, self.engine, self.feed, self.place, self.events = config, engine, feed, place, events
        self.identity = identity(engine.spec, feed.tokenizer.fingerprint)
        self.store = Store(
            run,
            keep=config.checkpoint.keep,
            fence=lock.still_mine if lock else None,
            token=from_rank_0(lock.token if lock else ""),
            damaged=self._damaged,
        )
        self.tell: Callable[[int, float], object] = lambda step, seconds: None
        """Called on rank 0, in a thread, with the step of a checkpoint that counts and the seconds it took."""
        self._background, self._copies = Background(), HostCopies()

    def restore(self) -> int:
        """Continue from the newest good checkpoint, if any; returns the number of the next step to train."""
        begun = time.monotonic()
        if self.events:
            self.store.take_over()
        newest = self.store.newest() if self.events else None
        step = from_rank_0(newest.step if newest else None)
        if step is not None:
            checkpoint = self.store.load(step)
            refuse_another(checkpoint, self.identity)
            refuse_other_text(checkpoint, self.feed.train.corpora)
            state.restore(self.engine, checkpoint.reader, step=step)
        if self.events:
            layout, processes = self.config.layout.model_dump(), self.place.world
            if step is None:
                self.events.write(StartEvent(parameters=count(self.engine.spec), layout=layout, processes=processes))
            else:
                seconds = round(time.monotonic() - begun, 3)
                folder = checkpoint.folder.name
                self.events.write(
                    ResumeEvent(step=step, checkpoint=folder, seconds=seconds, layout=layout, processes=processes)
                )
        return step or 0

    def save(self, step: int, *, wait: bool) -> None:
        """All ranks write, then rank 0 commits. With `wait` the checkpoint counts when this returns.

        Without, training stands still for a copy to host memory only, and the checkpoint counts some steps later.
        """
        self.finish()
        begun = time.monotonic()
        if self.events:
            self.store.prepare(step)
        wait_for_all()
        pieces = state.pieces(self.engine)
        self._background.begin(
            partial(self.store.write, step, self.place.rank, list(pieces) if wait else self._copies.take(pieces)),
            partial(self._commit, step, self._state(step), begun),
        )
        if wait:
            self.finish()

    def advance(self) -> None:
        """All ranks, at the end of a step: commit what all have written by now; what went wrong is raised here."""
        self._background.advance()

    def finish(self) -> None:
        """All ranks: return when the checkpoint under way counts, if there is one."""
        self._background.finish()

    def _commit(self, step: int, state: dict[str, Any], begun: float) -> None:
        if self.events:
            committed = self.store.commit(step, state, ranks=self.place.world)
            seconds = round(time.monotonic() - begun, 3)
            self.events.write(CheckpointEvent(step=step, bytes=committed.size, seconds=seconds))
            self.tell(step, seconds)

    def _damaged(self, step: int, problem: str, kept: Path) -> None:
        if self.events:
            self.events.write(DamagedCheckpointEvent(step=step, problem=problem, kept=str(kept)))

    def _state(self, step: int) -> dict[str, Any]:
        samples = self.config.batches.first(step)
        return {
            **self.identity,
            "samples": samples,
            "cursors": self.feed.train.cursors(samples),
            "corpora": self.feed.train.corpora,
            "config": self.config.model_dump(),
            "version": __version__,
        }
