"""Long-lived worker processes for multi-process tests: importing megatron-core once, not once a case."""

from __future__ import annotations

import gc
import multiprocessing as mp
import os
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


class Pool:
    """`pool.run(2, function, ...)` calls a module-level function in two processes joined in one gloo world."""

    def __init__(self, processes: int) -> None:
        context = mp.get_context("spawn")
        self._pipes: list[Connection] = []
        self._workers = []
        for _ in range(processes):
            ours, theirs = context.Pipe()
            worker = context.Process(target=_serve, args=(theirs,), daemon=True)
            worker.start()
            self._pipes.append(ours)
            self._workers.append(worker)

    def run(self, world: int, function: Callable[..., Any], *args: Any, seconds: float = 300.0) -> list[Any]:
        """The results of all ranks, in order; the first failing rank's traceback if any fails."""
        # A fresh rendezvous file a call: no ports to clash on.
        file = tempfile.mktemp(prefix="megaptm-world-")
        for rank in range(world):
            self._pipes[rank].send((function, args, rank, world, file))
        answers = []
        for pipe in self._pipes[:world]:
            if not pipe.poll(seconds):
                raise TimeoutError(f"{function.__name__} did not answer in {seconds} s")
            answers.append(pipe.recv())
        for rank, (result, error) in enumerate(answers):
            if error is not None:
                raise AssertionError(f"rank {rank} of {world}:\n{error}\n{result or ''}")
        return [result for result, _ in answers]

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
            worker.join()


def _serve(pipe: Connection) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch
    import torch.distributed as dist

    from megaptm.parallel.groups import close_groups, join

    torch.set_num_threads(1)
    while True:
        function, args, rank, world, file = pipe.recv()
        try:
            join(rank=rank, world=world, local_rank=rank, init_method=f"file://{file}", timeout_minutes=3)
            pipe.send((function(*args), None))
        except BaseException:
            pipe.send((None, traceback.format_exc()))
        finally:
            close_groups()
            if dist.is_initialized():
                dist.destroy_process_group()
            # An engine is full of reference cycles, and while it lives so do the threads of its groups.
            gc.collect()
