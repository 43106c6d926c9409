"""Execution of jobs in this process or on Ray. Results do not depend on the executor or on the order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from megaptm.errors import UserError
from megaptm.schedulers.ray.connection import ray_connection

Job = TypeVar("Job")
Result = TypeVar("Result")

MIN_RAY_BYTES = 64 << 20
"""Bytes of input below which starting Ray (about 8 seconds) takes longer than the work (10 to 50 MB/s)."""

# A lost worker (out of memory, lost machine) is replaced, and its job runs again. Jobs write under a temporary name and
# rename, so a worker that is wrongly considered lost does no harm.
RETRIES = 3

CANCEL_SECONDS = 30.0
"""Seconds to wait for the cancellation of tasks on a lost machine. A living process ends immediately."""


class Workers(Protocol):
    """Executor of the jobs of a corpus build. `run` yields each result with the index of its job, in order of
    completion."""

    count: int

    def run(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[tuple[int, Result]]: ...


class InProcess:
    """Sequential execution of jobs in this process."""

    count = 0

    def run(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[tuple[int, Result]]:
        for number, job in enumerate(jobs):
            yield number, function(job)


class OnRay:
    """Execution of jobs as Ray tasks, up to `count` at once."""

    def __init__(self, count: int):
        self.count = count

    def run(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[tuple[int, Result]]:
        import ray

        task: Any = ray.remote(num_cpus=1, max_retries=RETRIES)(_run_single_threaded)
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
            raise UserError(_lost_job_message(error)) from None
        finally:
            _cancel_tasks(list(running))


def _cancel_tasks(running: list[Any]) -> None:
    """Cancel tasks and wait for their end, because the folder that they write to may be removed next."""
    import ray

    for task in running:
        ray.cancel(task, force=True)
    if running:
        ray.wait(running, num_returns=len(running), timeout=CANCEL_SECONDS)


def _lost_job_message(error: Exception) -> str:
    """Return the message for a job whose worker was lost in every attempt."""
    reason = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
    return (
        f"the worker of a Ray job was lost {RETRIES + 1} times ({reason}): check that its machine is running and has "
        "enough memory, or use fewer workers (workers=N)."
    )


@contextmanager
def open_workers(count: int | None, input_bytes: int, scratch: Path | None = None) -> Iterator[Workers]:
    """Open `count` workers of a corpus build; 0 for this process. None: this process for small input, else one worker
    per CPU of Ray.

    Uses the Ray cluster that this process is connected to, else that of RAY_ADDRESS, else starts its own. Any other Ray
    on this machine is not used. `scratch`: a folder that must be visible on every machine of the cluster.
    """
    if count is None and input_bytes < MIN_RAY_BYTES:
        count = 0
    if count == 0:
        yield InProcess()
        return
    with ray_connection(cpus=count):
        import ray

        if scratch is not None:
            _check_shared(scratch)
        yield OnRay(count or int(ray.cluster_resources()["CPU"]))


def _check_shared(scratch: Path) -> None:
    """Raise `UserError` unless each machine sees a file that this process has written to `scratch`."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = ray.get_runtime_context().get_node_id()
    other_nodes = [
        node for node in ray.nodes() if node["Alive"] and node["NodeID"] != here and node["Resources"].get("CPU")
    ]
    if not other_nodes:
        return
    mark = scratch / f".{here}.part"
    mark.touch()
    exists: Any = ray.remote(num_cpus=1)(os.path.exists)
    on_node = (NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in other_nodes)
    is_visible = ray.get([exists.options(scheduling_strategy=strategy).remote(str(mark)) for strategy in on_node])
    mark.unlink(missing_ok=True)
    if not all(is_visible):
        blind = other_nodes[is_visible.index(False)]["NodeManagerAddress"]
        raise UserError(
            f"node {blind} of the Ray cluster cannot access {scratch}: set a folder that all nodes share with "
            "scratch=FOLDER."
        )


def _run_single_threaded(function: Callable[[Job], Result], job: Job) -> Result:
    """Run a job on a worker without tokenizer threads, because many workers share the CPUs."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return function(job)
