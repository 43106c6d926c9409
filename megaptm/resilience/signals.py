"""How a run is asked to stop: a signal sets a flag, and the trainer looks at it between two steps."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from megaptm.resilience.failures import LOST_PEER

# SIGTERM: a scheduler or a person ends the job. SIGUSR1: Slurm's word, some time before the limit. SIGINT: Ctrl-C.
# SIGHUP: the terminal is lost.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)
# What is nearly there is waited for, so that a stop does not cost a validation; a server that is silent is not.
GRACE_SECONDS = 3.0


def heeded(signals: Iterable[signal.Signals]) -> list[signal.Signals]:
    """Those that ask this process for a stop: under nohup it is not to end with its terminal."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [number for number in signals if not (ignored and number == signal.SIGHUP)]


class StopError(Exception):
    """A stop was requested, and what the run was waiting for did not come."""


class StopRequest:
    """While it is entered, the signals above only set `requested`; the step and the checkpoint under way are finished.
    Reading is not: see `ends_waiting`.

    A signal may reach one rank and not another, or reach them in different steps: ranks must agree before they act.
    Ctrl-C a second time raises KeyboardInterrupt; SIGTERM never does, however often it comes: schedulers repeat it, and
    have SIGKILL for when they mean it. A forked child - a data loader's worker - goes on serving its parent through a
    stop, and dies of SIGTERM as usual, which is how its parent ends it.
    """

    _entered: StopRequest | None = None

    def __init__(self) -> None:
        self.name: str | None = None
        """Of the first signal that came."""
        self._before: dict[signal.Signals, Any] = {}
        self._interrupted = False
        self._giving_up = False

    @property
    def requested(self) -> bool:
        return self.name is not None

    def __enter__(self) -> StopRequest:
        for number in heeded(SIGNALS):
            self._before[number] = signal.signal(number, self._received)
        self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._waited_enough)
        StopRequest._entered = self
        return self

    def __exit__(self, *exc: object) -> None:
        StopRequest._entered = None
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def ignore_from_now_on(self) -> None:
        """The work is done and saved: a signal that comes late, or again, must not make a death of an orderly end."""
        self._before |= dict.fromkeys(SIGNALS, signal.SIG_IGN)

    @contextmanager
    def ends_waiting(self) -> Iterator[None]:
        """For what may wait for a server, or for ranks that do: `StopError` some seconds after a stop is requested,
        wherever it waits, or where another rank has ended because of it meanwhile."""
        self._giving_up = True
        try:
            if self.requested:
                signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)
            yield
        except RuntimeError as error:  # who waits in a collective is not woken by the signal, but by that end
            if self.requested and LOST_PEER.search(str(error)):
                raise StopError from error
            raise
        finally:
            self._giving_up = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _received(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._interrupted:
            raise KeyboardInterrupt
        self._interrupted = self._interrupted or number == signal.SIGINT
        if self._giving_up and not self.requested:
            signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)
        self.name = self.name or signal.Signals(number).name

    def _waited_enough(self, number: int, frame: FrameType | None) -> None:
        if self._giving_up:
            raise StopError


def _forget_in_child() -> None:
    if StopRequest._entered is not None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)


os.register_at_fork(after_in_child=_forget_in_child)
