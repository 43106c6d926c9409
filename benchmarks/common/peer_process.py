"""A separate process for peers, without the allocator settings of megaptm's engine."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

CLEAR = "clear"


class PeerProcess:
    """Process that builds steps and runs them. It ends with this process."""

    def __init__(self, *, threads: int, keeps_memory: bool = False) -> None:
        """`keeps_memory`: whether to apply `cpu_tuning.keep_freed_memory` nevertheless."""
        context = multiprocessing.get_context("spawn")
        self._pipe, child_connection = context.Pipe()
        process = context.Process(target=_serve, args=(child_connection, threads, keeps_memory), daemon=True)
        process.start()

    def build(self, maker: Callable[..., Callable[[], object]], *args: object, **words: object) -> PeerStep:
        """Build a step in the process: the result of `maker`, a module-level function, with these arguments."""
        return PeerStep(self, self.request((maker, args, words)))

    def clear(self) -> None:
        """Remove all steps."""
        self.request(CLEAR)

    def request(self, message: object) -> Any:
        """Send a message and return the reply; raise `RuntimeError` if the reply is an error."""
        self._pipe.send(message)
        reply = self._pipe.recv()
        if isinstance(reply, Exception):
            raise RuntimeError(str(reply)) from reply
        return reply


@dataclass(frozen=True)
class PeerStep:
    """A step in the process, timed there."""

    process: PeerProcess
    index: int

    def __call__(self) -> None:
        self.process.request((self.index, None))

    def seconds(self, clock: Callable[[], float]) -> float:
        """Return the seconds of one call by that process's clock."""
        return float(self.process.request((self.index, clock)))


def _serve(pipe: Any, threads: int, keeps_memory: bool) -> None:
    torch.set_num_threads(threads)
    if keeps_memory:
        from megaptm.train.cpu_tuning import keep_freed_memory

        keep_freed_memory()
    steps: list[Callable[[], object]] = []
    while True:
        try:
            message = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(_handle(message, steps))
        except Exception:
            pipe.send(RuntimeError(traceback.format_exc()))


def _handle(message: Any, steps: list[Callable[[], object]]) -> float | None:
    if message == CLEAR:
        steps.clear()
        return None
    if len(message) == 3:
        maker, args, words = message
        steps.append(maker(*args, **words))
        return len(steps) - 1
    index, clock = message
    started = clock() if clock else 0.0
    steps[index]()
    return clock() - started if clock else None
