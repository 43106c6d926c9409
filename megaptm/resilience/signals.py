"""Graceful stop of a run: a signal sets a flag, which the trainer checks between two steps."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from megaptm.resilience.failures import LOST_PEER

# SIGTERM: a scheduler or a user ends the job. SIGUSR1: Slurm's warning before the time limit. SIGINT: Ctrl-C. SIGHUP:
# the terminal was closed.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)
# Time to finish a wait or a validation that is almost over. A stop does not wait for a dead server, nor for minutes of
# validation, after which a scheduler may have killed the run.
GRACE_SECONDS = 3.0


def handled_signals(signals: Iterable[signal.Signals]) -> list[signal.Signals]:
    """Return the signals that request a run to stop. Under nohup, SIGHUP does not."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [number for number in signals if not (ignored and number == signal.SIGHUP)]


class StopError(Exception):
    """Raised if a stop was requested while the run waits for data or for other ranks."""


class StopRequest:
    """Context in which stop signals only set `requested`; the current step and checkpoint are finished. Waiting for
    data can be interrupted, see `interrupt_waits`.

    A signal may reach ranks in different steps, or only some of them, so ranks must agree before they act.

    A second Ctrl-C raises KeyboardInterrupt. Repeated SIGTERM does not, because schedulers repeat it and have SIGKILL.
    A forked worker of the data loader ignores these signals except SIGTERM, which its parent sends to end it.
    """

    _entered: StopRequest | None = None

    def __init__(self) -> None:
        self.name: str | None = None
        """Name of the first stop signal received."""
        self._time = math.inf
        """Time at which it was received."""
        self._old_handlers: dict[signal.Signals, Any] = {}
        self._interrupted = False
        self._may_interrupt = False

    @property
    def requested(self) -> bool:
        return self.name is not None

    @property
    def seconds(self) -> float:
        """Return the seconds since a stop was requested; less than 0 without a request."""
        return time.monotonic() - self._time

    def __enter__(self) -> StopRequest:
        for number in handled_signals(SIGNALS):
            self._old_handlers[number] = signal.signal(number, self._on_signal)
        self._old_handlers[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._on_grace_end)
        StopRequest._entered = self
        return self

    def __exit__(self, *exc: object) -> None:
        StopRequest._entered = None
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)

    def ignore_signals(self) -> None:
        """Ignore further stop signals, because the work is saved and a late signal must not turn a normal exit into a
        failure."""
        self._old_handlers |= dict.fromkeys(SIGNALS, signal.SIG_IGN)

    @contextmanager
    def interrupt_waits(self) -> Iterator[None]:
        """Return a context in which a stop interrupts code that may wait for a server, or for ranks that do. Raises
        `StopError` some seconds after a stop is requested, or when another rank has ended because of it."""
        self._may_interrupt = True
        try:
            if self.requested:
                signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)
            yield
        except RuntimeError as error:  # the end of another rank, not the signal, ends a wait in a collective
            if self.requested and LOST_PEER.search(str(error)):
                raise StopError from error
            raise
        finally:
            self._may_interrupt = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._interrupted:
            raise KeyboardInterrupt
        self._interrupted = self._interrupted or number == signal.SIGINT
        if self._may_interrupt and not self.requested:
            signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)
        self._time = min(self._time, time.monotonic())
        self.name = self.name or signal.Signals(number).name

    def _on_grace_end(self, number: int, frame: FrameType | None) -> None:
        if self._may_interrupt:
            raise StopError


def _reset_signals_in_child() -> None:
    if StopRequest._entered is not None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)


os.register_at_fork(after_in_child=_reset_signals_in_child)
