"""Functions run by the ranks of a real gloo world, each a process of its own."""

from __future__ import annotations

import gc
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

PROCESSES = multiprocessing.get_context("forkserver")
# Ranks are forked from a process that has imported what takes seconds, but never computed: quick, and safe to fork.
# One list for all tests: there is one such process, and the last list that is set before its start is the one it takes.
# They end with their call, and so do the threads that gloo keeps for each group, which wake all the time.
PRELOADED = (
    "megaptm.parallel.engine",
    "megaptm.train.run",
    "megaptm.train.loop",
    "megaptm.train.checkpointer",
    "megaptm.words.engine",
    "megaptm.words.network_engine",
    "data_pipeline.corpus.build",
    "megaptm.launch.local",
    "pytest",  # a function's module is a test's
    "torch._dynamo",
)
PROCESSES.set_forkserver_preload([*PRELOADED])


def run_ranks(world: int, function: Callable[..., Any], *args: Any, seconds: float = 300.0) -> list[Any]:
    """What a module-level function returns on each rank of a world; the first failing rank's traceback if any fails."""
    pipes: list[Connection] = []
    ranks = []
    with tempfile.TemporaryDirectory(prefix="megaptm-world-") as folder:
        try:
            for rank in range(world):
                ours, theirs = PROCESSES.Pipe()
                process = PROCESSES.Process(target=_serve, args=(theirs, function, args, rank, world, f"{folder}/file"))
                process.start()
                theirs.close()
                pipes.append(ours)
                ranks.append(process)
            answers: dict[int, Any] = {}
            until = time.monotonic() + seconds
            while len(answers) < world:
                waiting = {pipe: rank for rank, pipe in enumerate(pipes) if rank not in answers}
                if not (ready := wait([*waiting], until - time.monotonic())):
                    raise TimeoutError(f"{function.__name__} did not answer in {seconds} s")
                for pipe in ready:
                    result, error = pipe.recv()  # type: ignore[union-attr]
                    if error is not None:  # the others may wait for this one
                        raise AssertionError(f"rank {waiting[pipe]} of {world}:\n{error}\n{result or ''}")
                    answers[waiting[pipe]] = result
        finally:
            for process in ranks:
                process.kill()
                process.join()
    return [answers[rank] for rank in range(world)]


def _serve(
    pipe: Connection, function: Callable[..., Any], args: tuple[Any, ...], rank: int, world: int, file: str
) -> None:
    import torch

    from megaptm.parallel.groups import join

    gc.freeze()  # what was imported is no garbage: looking through it takes longer than a step
    torch.set_num_threads(1)
    try:
        join(rank=rank, world=world, local_rank=rank, init_method=f"file://{file}", timeout_minutes=3)
        answer = (function(*args), None)
    except BaseException:
        answer = (None, traceback.format_exc())
    pipe.send(answer)
    # Until all have answered: a rank that waits for another should learn of its error, not of its end.
    pipe.poll(None)
    os._exit(0)
