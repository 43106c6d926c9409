"""Work that goes on while the ranks train: in a thread of each, which never talks to another rank."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from itertools import chain, repeat
from typing import TypeVar

from megaptm.checkpoint.files import NotSavedError
from megaptm.checkpoint.store import GoneError
from megaptm.errors import UserError
from megaptm.parallel.collectives import all_gather_object, any_rank_each, barrier

T = TypeVar("T")

# Short at first, so that quick work is not waited for longer than it takes.
POLL_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Seconds for which ranks wait for their own work before they ask each other how far they are."""


class Background:
    """Work in phases: a phase begins when all ranks have done the one before, which they find out between two steps.

    All ranks call each method at the same point of the program. What fails on one of them is raised on all.
    """

    def __init__(self) -> None:
        self._phases: Iterator[Callable[[], object]] = iter(())
        self._doing: Future[object] | None = None

    def begin(self, *phases: Callable[[], object]) -> None:
        """Begin the first of some phases; those begun before must be finished."""
        assert self._doing is None
        self._phases = iter(phases)
        self._next()

    def advance(self) -> None:
        """At the end of a step: begin the next phase if it is time."""
        if self._doing is None:
            return
        done = self._doing.done()
        failed, busy = any_rank_each(done and self._doing.exception() is not None, not done)
        if failed:
            self._raise()
        elif not busy:
            self._next()

    def finish(self) -> None:
        """Wait until all phases are done, however long the slowest rank takes.

        Ranks ask each other again and again meanwhile: one that has done its part and waited in a collective for the
        others would give them up after the time limit that collectives have.
        """
        for seconds in chain(POLL_SECONDS, repeat(POLL_SECONDS[-1])):
            if self._doing is None:
                return
            wait([self._doing], timeout=seconds)
            self.advance()

    def _next(self) -> None:
        phase = next(self._phases, None)
        self._doing = None if phase is None else _in_a_thread(phase)

    def _raise(self) -> None:
        assert self._doing is not None
        wait([self._doing])
        error, self._doing = self._doing.exception(), None
        own, (cause, sentence) = _told(error), min(filter(None, all_gather_object(_told(error))))
        if error is not None and own == (cause, sentence):
            raise error
        if cause == MISTAKE_OF_OURS:
            barrier()  # in vain: the rank where the program failed ends, and should be the first to be heard
        raise (NotSavedError if cause == STORAGE_FAILED else UserError)(sentence) from error


def together(work: Callable[[], T]) -> T:
    """What `work` returns here, once all ranks have done theirs, however long that takes; fails on all or none."""
    answers: list[T] = []
    background = Background()
    background.begin(lambda: answers.append(work()))
    background.finish()
    return answers[0]


# Causes come before their consequences.
MISTAKE_OF_OURS, MISTAKE_OF_A_USER, STORAGE_FAILED, CONSEQUENCE = range(4)


def _told(error: BaseException | None) -> tuple[int, str] | None:
    if error is None:
        return None
    if not isinstance(error, UserError):
        return MISTAKE_OF_OURS, repr(error)
    if isinstance(error, GoneError):
        return CONSEQUENCE, str(error)
    return STORAGE_FAILED if isinstance(error, NotSavedError) else MISTAKE_OF_A_USER, str(error)


def _in_a_thread(work: Callable[[], object]) -> Future[object]:
    future: Future[object] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    # Not waited for where the program ends in an error: what it was doing would never count.
    threading.Thread(target=run, name="background", daemon=True).start()
    return future
