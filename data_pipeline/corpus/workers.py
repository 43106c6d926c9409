"""Who does the work: this process, or Ray. The same jobs give the same results, whoever runs them and in any order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from megaptm.errors import UserError
from megaptm.schedulers.ray.connection import connected

Job = TypeVar("Job")
Result = TypeVar("Result")

SMALL = 64 << 20
"""Bytes of input below which starting Ray (about 8 seconds) takes longer than the work (10 to 50 MB/s)."""

# A worker that dies (out of memory, lost machine) is replaced, and its job runs again; jobs write under a temporary
# name and rename, so a worker believed dead does no harm.
RETRIES = 3

CANCEL_SECONDS = 30.0
"""What a lost machine may take to be told so; a process that lives is ended in an instant."""


class Workers(Protocol):
    """Runs jobs; yields each result with the number of its job, as they finish."""

    count: int

    def run(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[tuple[int, Result]]: ...


class InProcess:
    """One job after the other, here."""

    count = 0

    def run(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[tuple[int, Result]]:
        for number, job in enumerate(jobs):
            yield number, function(job)


class OnRay:
    """Up to `count` jobs at once, as Ray tasks."""

    def __init__(self, count: int):
        self.count = count

    def run(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[tuple[int, Result]]:
        import ray

        task: Any = ray.remote(num_cpus=1, max_retries=RETRIES)(_quietly)
        waiting = iter(enumerate(jobs))
        running: dict[ray.ObjectRef, int] = {}
        try:
            while True:
                while len(running) < self.count and (job := next(waiting, None)):
                    running[task.remote(function, job[1])] = job[0]
                if not running:
                    return
                [done], _ = ray.wait(list(running), num_returns=1)
                yield running.pop(done), ray.get(done)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except (
            ray.exceptions.WorkerCrashedError,
            ray.exceptions.NodeDiedError,
            ray.exceptions.OutOfMemoryError,
        ) as error:
            raise UserError(_given_up(error)) from None
        finally:
            _cancel(list(running))


def _cancel(running: list[Any]) -> None:
    """They have ended when this returns: one that still wrote would write into a folder that is being removed."""
    import ray

    for task in running:
        ray.cancel(task, force=True)
    if running:
        ray.wait(running, num_returns=len(running), timeout=CANCEL_SECONDS)


def _given_up(error: Exception) -> str:
    """That a worker, and each that took its place, was lost before the job was done."""
    said = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
    return (
        f"Ray gives up a job whose worker was lost {RETRIES + 1} times ({said}): see that its machine lives and has "
        "memory enough, or use fewer workers (workers=N)."
    )


@contextmanager
def open_workers(count: int | None, input_bytes: int, scratch: Path | None = None) -> Iterator[Workers]:
    """`count` workers; 0: this process. Absent: this process for little text, else one for each CPU Ray has.

    The Ray that this process is connected to, else the one RAY_ADDRESS names, else one of our own. A Ray that merely
    happens to run on this machine is left alone. `scratch`: a folder that every machine of the cluster must see.
    """
    if count is None and input_bytes < SMALL:
        count = 0
    if count == 0:
        yield InProcess()
        return
    with connected(cpus=count):
        import ray

        if scratch is not None:
            _check_shared(scratch)
        yield OnRay(count or int(ray.cluster_resources()["CPU"]))


def _check_shared(scratch: Path) -> None:
    """Workers hand each other files: each machine looks for one that this process has written."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = ray.get_runtime_context().get_node_id()
    others = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] != here and node["Resources"].get("CPU")]
    if not others:
        return
    mark = scratch / f".{here}.part"
    mark.touch()
    exists: Any = ray.remote(num_cpus=1)(os.path.exists)
    on_node = (NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in others)
    seen = ray.get([exists.options(scheduling_strategy=strategy).remote(str(mark)) for strategy in on_node])
    mark.unlink(missing_ok=True)
    if not all(seen):
        blind = others[seen.index(False)]["NodeManagerAddress"]
        raise UserError(
            f"machine {blind} of the Ray cluster does not see {scratch}: name a folder that all machines share with "
            "scratch=FOLDER."
        )


def _quietly(function: Callable[[Job], Result], job: Job) -> Result:
    """Runs on a worker, which is one of many: the tokenizer library must not start a thread for each CPU as well."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return function(job)
