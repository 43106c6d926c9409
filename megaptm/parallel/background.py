"""Background work during training, such as writing a checkpoint: a thread on each rank, which never communicates."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from itertools import chain, repeat
from typing import TypeVar

import torch

from megaptm.checkpoint.files import NotSavedError
from megaptm.checkpoint.store import GoneError
from megaptm.errors import UserError
from megaptm.parallel.collectives import all_gather_object, any_rank_each, barrier
from megaptm.parallel.groups import rank_device

T = TypeVar("T")

# Short at first, so that quick work returns quickly.
POLL_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Seconds for which a rank waits for its own background work before ranks compare their progress."""


class Background:
    """Background work of all ranks in phases. A phase starts when all ranks have finished the one before, which they
    check between two training steps.

    All ranks call each method at the same point of the program. A failure on one rank is raised on all.
    """

    def __init__(self) -> None:
        self._phases: Iterator[Callable[[], object]] = iter(())
        self._running: Future[object] | None = None

    def begin(self, *phases: Callable[[], object]) -> None:
        """Start the first phase of background work. Earlier phases must be finished."""
        assert self._running is None
        self._phases = iter(phases)
        self._start_next()

    def advance(self) -> None:
        """Start the next phase of background work if all ranks have finished the current one. Called at the end of a
        training step."""
        if self._running is None:
            return
        done = self._running.done()
        failed, busy = any_rank_each(done and self._running.exception() is not None, not done)
        if failed:
            self._raise_failure()
        elif not busy:
            self._start_next()

    def finish(self) -> None:
        """Wait until all phases of background work are done, however long the slowest rank takes.

        Ranks poll each other meanwhile: a single collective would fail after its time limit.
        """
        for seconds in chain(POLL_SECONDS, repeat(POLL_SECONDS[-1])):
            if self._running is None:
                return
            wait([self._running], timeout=seconds)
            self.advance()

    def _start_next(self) -> None:
        phase = next(self._phases, None)
        self._running = None if phase is None else _run_in_thread(phase)

    def _raise_failure(self) -> None:
        assert self._running is not None
        wait([self._running])
        error, self._running = self._running.exception(), None
        own, (cause, message) = _describe_cause(error), min(filter(None, all_gather_object(_describe_cause(error))))
        if error is not None and own == (cause, message):
            raise error
        if cause == BUG:
            barrier()  # never passes: the rank with the bug exits, and its error should be reported first
        raise (NotSavedError if cause == STORAGE_FAILED else UserError)(message) from error


def run_on_all_ranks(work: Callable[[], T]) -> T:
    """Run `work` on all ranks at the same time and return this rank's result, however long the slowest rank takes. If
    it fails on one rank, raise on all."""
    results: list[T] = []
    background = Background()
    background.begin(lambda: results.append(work()))
    background.finish()
    return results[0]


# Causes come before their consequences.
BUG, USER_ERROR, STORAGE_FAILED, CONSEQUENCE = range(4)


def _describe_cause(error: BaseException | None) -> tuple[int, str] | None:
    """Return the class and message of an error, as text for other ranks."""
    if error is None:
        return None
    if not isinstance(error, UserError):
        return BUG, repr(error)
    if isinstance(error, GoneError):
        return CONSEQUENCE, str(error)
    return STORAGE_FAILED if isinstance(error, NotSavedError) else USER_ERROR, str(error)


def _run_in_thread(work: Callable[[], object]) -> Future[object]:
    future: Future[object] = Future()
    own = rank_device()

    def run() -> None:
        try:
            if own.type == "cuda":
                torch.cuda.set_device(own)  # a new thread starts with the first GPU
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    # The program does not wait for this thread when it exits with an error; its work would be discarded anyway.
    threading.Thread(target=run, name="background", daemon=True).start()
    return future
