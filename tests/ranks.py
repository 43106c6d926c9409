"""Functions run by the ranks of a real gloo world, one process per rank."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess as SpawnedProcess
from typing import Any

PROCESSES = multiprocessing.get_context("forkserver")
# Ranks are forked from a server process that has imported the heavy modules but never computed: this is fast, and safe
# to fork. All tests share the server and its list of modules. Ranks end with their call, and so do the threads that
# gloo keeps for each group.
PRELOADED = (
    "megaptm.parallel.build",
    "megaptm.train.run",
    "megaptm.train.loop",
    "megaptm.train.checkpointer",
    "megaptm.families.word_vectors.engine",
    "megaptm.families.word_vectors.network_engine",
    "data_pipeline.corpus.build",
    "megaptm.launch.local",
    "pytest",  # the function's module is a test's
    "torch._dynamo",
)
PROCESSES.set_forkserver_preload([*PRELOADED])

MAX_THREADS = 64
"""Arguments of a waiting rank, independent of what a test has changed."""


@dataclass
class World:
    """Waiting ranks per world: the start of a rank takes longer than most calls."""

    ranks: list[SpawnedProcess]
    pipes: list[Connection]
    folder: tempfile.TemporaryDirectory[str]
    threads: int = 0
    """Maximum number of threads of a rank. Threads of gloo wake a hundred times a second; a few hundred occupy a
    core."""

    @classmethod
    def open(cls, size: int) -> World:
        world = cls([], [], tempfile.TemporaryDirectory(prefix="megaptm-world-"))
        for rank in range(size):
            connection, rank_connection = PROCESSES.Pipe()
            process = PROCESSES.Process(target=_serve, args=(rank_connection, rank, size, f"{world.folder.name}/file"))
            process.start()
            rank_connection.close()
            world.pipes.append(connection)
            world.ranks.append(process)
        return world

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], seconds: float) -> list[Any]:
        for pipe in self.pipes:
            _send(pipe, (function, args))
        answers: dict[int, Any] = {}
        until = time.monotonic() + seconds
        while len(answers) < len(self.pipes):
            waiting = {pipe: rank for rank, pipe in enumerate(self.pipes) if rank not in answers}
            if not (ready := wait([*waiting], until - time.monotonic())):
                raise TimeoutError(f"{function.__name__} did not answer in {seconds} s")
            for pipe in ready:
                result, error, threads = pipe.recv()  # type: ignore[union-attr]
                self.threads = max(self.threads, threads)
                if error is not None:  # the other ranks may wait for this one
                    raise AssertionError(f"rank {waiting[pipe]} of {len(self.pipes)}:\n{error}\n{result or ''}")
                answers[waiting[pipe]] = result
        return [answers[rank] for rank in range(len(self.pipes))]

    def close(self) -> None:
        for process in self.ranks:
            process.kill()
            process.join()
        self.folder.cleanup()


_open: dict[int, World] = {}
"""Waiting worlds, by their number of ranks."""


def run_ranks(world: int, function: Callable[..., Any], *args: Any, seconds: float = 300.0) -> list[Any]:
    """Return the results of a module-level function on each rank; raise the first failing rank's traceback.

    Calls of one test module with the same number of ranks share a world.
    """
    ranks = _open.pop(world, None) or World.open(world)
    try:
        answers = ranks.call(function, args, seconds)
    except BaseException:
        ranks.close()
        raise
    if ranks.threads > MAX_THREADS:
        ranks.close()
    else:
        _open[world] = ranks
    return answers


def close_worlds() -> None:
    """End the waiting ranks, whose gloo threads wake all the time."""
    while _open:
        _open.popitem()[1].close()


def _send(pipe: Connection, message: Any) -> None:
    """Send a message with tensors by value. `Connection.send` shares their memory, with an open file for each."""
    pipe.send_bytes(pickle.dumps(message))


def _serve(pipe: Connection, rank: int, world: int, file: str) -> None:
    import torch

    from megaptm.parallel.groups import join_process_group

    gc.freeze()  # imported objects are not garbage; scanning them takes longer than a step
    torch.set_num_threads(1)
    joined = False
    while True:
        function, args = pipe.recv()
        try:
            if not joined:
                join_process_group(
                    rank=rank, world=world, local_rank=rank, init_method=f"file://{file}", timeout_minutes=3
                )
                joined = True
            result, error = function(*args), None
            _forget_engines()
        except BaseException:
            result, error = None, traceback.format_exc()
        # Wait until all have answered: a rank that waits for another must learn of its error.
        _send(pipe, (result, error, len(os.listdir("/proc/self/task"))))


def _forget_engines() -> None:
    """End the groups of engines, and their threads.

    megatron-core's distributed optimizer attaches a parameter's own slice to it, which keeps the parameter alive where
    Python cannot see it.
    """
    import torch.distributed as dist

    from megaptm.parallel.gradients import ChunkGradients
    from megaptm.parallel.groups import close_groups

    close_groups()
    for group in [group for group in dist.distributed_c10d._world.pg_map if group is not dist.group.WORLD]:
        dist.destroy_process_group(group)
    for chunk in [held for held in gc.get_objects() if type(held) is ChunkGradients]:
        for parameter in chunk.parameters():
            vars(parameter).pop("main_param", None)
    gc.collect()
