"""A process for peers, as their users run them: what our engine tells the allocator of its own is not told theirs."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

FORGOTTEN = "forget"


class PeerProcess:
    """A process that builds steps and runs them. It ends with this one."""

    def __init__(self, *, threads: int, keeps_memory: bool = False) -> None:
        """`keeps_memory`: whether it is told after all (`processes.keep_freed_memory`)."""
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, threads, keeps_memory), daemon=True)
        process.start()

    def build(self, maker: Callable[..., Callable[[], object]], *args: object, **words: object) -> PeerStep:
        """The step that `maker`, a function of a module, makes there of these arguments."""
        return PeerStep(self, self.ask((maker, args, words)))

    def forget(self) -> None:
        """All that was built."""
        self.ask(FORGOTTEN)

    def ask(self, question: object) -> Any:
        """A `RuntimeError` where the answer is one."""
        self._pipe.send(question)
        answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise RuntimeError(str(answer)) from answer
        return answer


@dataclass(frozen=True)
class PeerStep:
    """One of its steps, which is timed there."""

    process: PeerProcess
    number: int

    def __call__(self) -> None:
        self.process.ask((self.number, None))

    def seconds(self, clock: Callable[[], float]) -> float:
        """Of one call, by a clock of that process."""
        return float(self.process.ask((self.number, clock)))


def _serve(pipe: Any, threads: int, keeps_memory: bool) -> None:
    torch.set_num_threads(threads)
    if keeps_memory:
        from megaptm.processes import keep_freed_memory

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
    begun = clock() if clock else 0.0
    steps[number]()
    return clock() - begun if clock else None
