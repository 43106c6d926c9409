"""Functions run by the ranks of a real gloo world, each a process of its own."""

from __future__ import annotations

import gc
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess as SpawnedProcess
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

MOST_THREADS = 64
"""Of a rank that waits, whatever a test has left there."""


@dataclass
class World:
    """Ranks that wait for the next function: what starts a rank takes longer than most of what tests ask of it."""

    ranks: list[SpawnedProcess]
    pipes: list[Connection]
    folder: tempfile.TemporaryDirectory[str]
    threads: int = 0
    """Of the rank that has most: gloo's wake a hundred times a second, and a few hundred are a core's work."""

    @classmethod
    def open(cls, size: int) -> World:
        world = cls([], [], tempfile.TemporaryDirectory(prefix="megaptm-world-"))
        for rank in range(size):
            ours, theirs = PROCESSES.Pipe()
            process = PROCESSES.Process(target=_serve, args=(theirs, rank, size, f"{world.folder.name}/file"))
            process.start()
            theirs.close()
            world.pipes.append(ours)
            world.ranks.append(process)
        return world

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], seconds: float) -> list[Any]:
        for pipe in self.pipes:
            pipe.send((function, args))
        answers: dict[int, Any] = {}
        until = time.monotonic() + seconds
        while len(answers) < len(self.pipes):
            waiting = {pipe: rank for rank, pipe in enumerate(self.pipes) if rank not in answers}
            if not (ready := wait([*waiting], until - time.monotonic())):
                raise TimeoutError(f"{function.__name__} did not answer in {seconds} s")
            for pipe in ready:
                result, error, threads = pipe.recv()  # type: ignore[union-attr]
                self.threads = max(self.threads, threads)
                if error is not None:  # the others may wait for this one
                    raise AssertionError(f"rank {waiting[pipe]} of {len(self.pipes)}:\n{error}\n{result or ''}")
                answers[waiting[pipe]] = result
        return [answers[rank] for rank in range(len(self.pipes))]

    def close(self) -> None:
        for process in self.ranks:
            process.kill()
            process.join()
        self.folder.cleanup()


_open: dict[int, World] = {}
"""Worlds that wait, by their number of ranks."""


def run_ranks(world: int, function: Callable[..., Any], *args: Any, seconds: float = 300.0) -> list[Any]:
    """What a module-level function returns on each rank of a world; the first failing rank's traceback if any fails.

    Calls of a module's tests for as many ranks are of one world.
    """
    ranks = _open.pop(world, None) or World.open(world)
    try:
        answers = ranks.call(function, args, seconds)
    except BaseException:
        ranks.close()
        raise
    if ranks.threads > MOST_THREADS:
        ranks.close()
    else:
        _open[world] = ranks
    return answers


def close_worlds() -> None:
    """End the ranks that wait, whose threads of gloo wake all the time."""
    while _open:
        _open.popitem()[1].close()


def _serve(pipe: Connection, rank: int, world: int, file: str) -> None:
    import torch

    from megaptm.parallel.groups import join

    gc.freeze()  # what was imported is no garbage: looking through it takes longer than a step
    torch.set_num_threads(1)
    joined = False
    while True:
        function, args = pipe.recv()
        try:
            if not joined:
                join(rank=rank, world=world, local_rank=rank, init_method=f"file://{file}", timeout_minutes=3)
                joined = True
            result, error = function(*args), None
            _forget_engines()
        except BaseException:
            result, error = None, traceback.format_exc()
        # Until all have answered the next is not asked: a rank that waits for another should learn of its error.
        pipe.send((result, error, len(os.listdir("/proc/self/task"))))


def _forget_engines() -> None:
    """End the groups that engines hold, and their threads.

    megatron-core's distributed optimizer hangs a parameter's own slice on it, which holds the parameter where Python
    cannot see it: neither would ever be garbage.
    """
    import torch.distributed as dist

    from megaptm.parallel.engine import DistributedDataParallel
    from megaptm.parallel.groups import close_groups

    close_groups()
    for group in [group for group in dist.distributed_c10d._world.pg_map if group is not dist.group.WORLD]:
        dist.destroy_process_group(group)
    for chunk in [held for held in gc.get_objects() if type(held) is DistributedDataParallel]:
        for parameter in chunk.parameters():
            vars(parameter).pop("main_param", None)
    gc.collect()
