"""A separate process for peers, without the allocator settings of megaptm's engine."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

FORGOTTEN = "forget"


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
        return PeerStep(self, self.ask((maker, args, words)))

    def forget(self) -> None:
        """Remove all steps."""
        self.ask(FORGOTTEN)

    def ask(self, question: object) -> Any:
        """Return the reply; raise `RuntimeError` if the reply is an error."""
        self._pipe.send(question)
        answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise RuntimeError(str(answer)) from answer
        return answer


@dataclass(frozen=True)
class PeerStep:
    """A step in the process, timed there."""

    process: PeerProcess
    number: int

    def __call__(self) -> None:
        self.process.ask((self.number, None))

    def seconds(self, clock: Callable[[], float]) -> float:
        """Return the seconds of one call by that process's clock."""
        return float(self.process.ask((self.number, clock)))


def _serve(pipe: Any, threads: int, keeps_memory: bool) -> None:
    torch.set_num_threads(threads)
    if keeps_memory:
        from megaptm.cpu_tuning import keep_freed_memory

        keep_freed_memory()
    steps: list[Callable[[], object]] = []
    while True:
        try:
            question = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(_answer(question, steps))
        except Exception:
            pipe.send(RuntimeError(traceback.format_exc()))


def _answer(question: Any, steps: list[Callable[[], object]]) -> float | None:
    if question == FORGOTTEN:
        steps.clear()
        return None
    if len(question) == 3:
        maker, args, words = question
        steps.append(maker(*args, **words))
        return len(steps) - 1
    number, clock = question
    started = clock() if clock else 0.0
    steps[number]()
    return clock() - started if clock else None
