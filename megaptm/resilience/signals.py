"""How a run is asked to stop: a signal sets a flag, and the trainer looks at it between two steps."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any

# SIGTERM: a scheduler or a person ends the job. SIGUSR1: Slurm's word, some time before the limit. SIGINT: Ctrl-C.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class StopRequest:
    """While it is entered, the signals above only set `requested`; the step and the checkpoint under way are finished.

    A signal may reach one rank and not another, or reach them in different steps: ranks must agree before they act.
    Ctrl-C a second time raises KeyboardInterrupt; SIGTERM never does, however often it comes: schedulers repeat it, and
    have SIGKILL for when they mean it. A forked child - a data loader's worker - goes on serving its parent through a
    stop, and dies of SIGTERM as usual, which is how its parent ends it.
    """

    _entered: StopRequest | None = None

    def __init__(self) -> None:
        self.name: str | None = None
        """The first signal that came: `SIGTERM`, `SIGUSR1` or `SIGINT`."""
        self._before: dict[signal.Signals, Any] = {}
        self._interrupted = False

    @property
    def requested(self) -> bool:
        return self.name is not None

    def __enter__(self) -> StopRequest:
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._received)
        StopRequest._entered = self
        return self

    def __exit__(self, *exc: object) -> None:
        StopRequest._entered = None
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _received(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._interrupted:
            raise KeyboardInterrupt
        self._interrupted = self._interrupted or number == signal.SIGINT
        self.name = self.name or signal.Signals(number).name


def _forget_in_child() -> None:
    if StopRequest._entered is not None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)


os.register_at_fork(after_in_child=_forget_in_child)
