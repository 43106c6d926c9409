"""Read the micro-batches of a step ahead of time, in worker processes or in one thread."""

from __future__ import annotations

import mmap
import os
import queue
import signal
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from megaptm.batch import BatchSpec, MicroBatch
from megaptm.batch_schedule import BatchSchedule
from megaptm.data.mix import SampleSource
from megaptm.errors import SHARED_MEMORY, UserError, storage_errors_as_user_errors
from megaptm.objectives.objective import Sample
from megaptm.processes import end_with_parent

# Time for the thread to finish a sample. A thread that waits for a server is abandoned, and ends with the process.
JOIN_SECONDS = 5.0
VALIDATION_PREFETCH = 2
"""Number of micro-batches that each worker reads ahead in validation. Micro-batches of training stay in memory
meanwhile."""
ALIGNMENT = 64
"""Alignment in bytes of the arrays of a micro-batch."""


@dataclass(frozen=True, kw_only=True)
class RankSlice:
    """Part of the samples of each step that one data rank reads: the contiguous `rank`-th part, in micro-batches."""

    schedule: BatchSchedule
    """Number of samples of each step, over all ranks."""
    microbatch: int
    rank: int
    ranks: int

    def __post_init__(self) -> None:
        if self.schedule.final_size % (self.ranks * self.microbatch):
            raise UserError(
                f"train.batch ({self.schedule.final_size}) must be a multiple of layout.data ({self.ranks}) x "
                f"layout.microbatch ({self.microbatch})."
            )

    def sample_ranges(self, step: int) -> list[range]:
        """Return the sample numbers of each micro-batch of a step."""
        per_rank = self.schedule.size(step) // self.ranks
        first = self.schedule.first_sample(step) + self.rank * per_rank
        return [range(at, at + self.microbatch) for at in range(first, first + per_rank, self.microbatch)]


class LostWorkerError(RuntimeError):
    """Raised if a data loader worker has exited unexpectedly."""

    def __init__(self, pid: int, exit_code: int) -> None:
        self.exit_code = exit_code
        """Exit code, or minus the number of the signal that killed the process."""
        ended = f"exit code {exit_code}"
        if exit_code < 0:
            ended = f"signal {-exit_code}, {signal.strsignal(-exit_code)}"
        super().__init__(f"data loader worker {pid} died ({ended})")


class Loader:
    """Data loader: iterator over (step, micro-batches) from `start_step` to `end_step`, or without end. Starting at a
    later step takes no longer.

    The content of a step depends only on the mix, and not on workers, ranks or micro-batch size.
    """

    def __init__(
        self,
        mix: SampleSource,
        *,
        start_step: int = 0,
        end_step: int | None = None,
        batch: int | BatchSchedule,
        microbatch: int,
        rank: int = 0,
        ranks: int = 1,
        workers: int = 0,
        prefetch: int = 4,
        pin: bool = False,
    ):
        self.mix = mix
        self.step = start_step
        """Next step that the loader returns."""
        self.end_step = end_step
        schedule = batch if isinstance(batch, BatchSchedule) else BatchSchedule(batch)
        self.slice = RankSlice(schedule=schedule, microbatch=microbatch, rank=rank, ranks=ranks)
        self._reader: _Processes | _Thread = (
            _Processes(self, workers, prefetch, pin=pin) if workers else _Thread(self, prefetch, pin=pin)
        )

    def __iter__(self) -> Iterator[tuple[int, list[MicroBatch]]]:
        return self

    def __next__(self) -> tuple[int, list[MicroBatch]]:
        if self.step == self.end_step:
            raise StopIteration
        batches = [self._reader.next() for _ in self.slice.sample_ranges(self.step)]
        self.step += 1
        return self.step - 1, batches

    def close(self) -> None:
        """Stop reading micro-batches ahead in the workers."""
        self._reader.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def sample_ranges(self) -> Iterator[range]:
        """Yield the sample numbers of all following micro-batches."""
        for step in count(self.step) if self.end_step is None else range(self.step, self.end_step):
            yield from self.slice.sample_ranges(step)


def read_validation(
    mix: SampleSource,
    *,
    batch: int,
    microbatch: int,
    rank: int = 0,
    ranks: int = 1,
    max_steps: int | None = None,
    workers: int | None = None,
) -> Iterator[list[MicroBatch]]:
    """Yield the first `max_steps` steps of a validation mix, or all before text repeats: one at a time, the same at
    each call. With `workers`, as in `Loader`, micro-batches are read ahead, which is useful for images that must be
    decoded."""
    slice_ = RankSlice(schedule=BatchSchedule(batch), microbatch=microbatch, rank=rank, ranks=ranks)
    steps = validation_steps(mix, batch=batch, max_steps=max_steps)
    if workers is None:
        for step in range(steps):
            yield [batch_to_tensors(stack_samples(mix, sample_ranges)) for sample_ranges in slice_.sample_ranges(step)]
        return
    with Loader(
        mix,
        end_step=steps,
        batch=batch,
        microbatch=microbatch,
        rank=rank,
        ranks=ranks,
        workers=workers,
        prefetch=VALIDATION_PREFETCH,
    ) as loader:
        for _, batches in loader:
            yield batches


def validation_steps(mix: SampleSource, *, batch: int, max_steps: int | None = None) -> int:
    """Return the number of steps of `read_validation`, without reading them."""
    steps = mix.fresh_batches(batch)
    return steps if max_steps is None else min(steps, max_steps)


def stack_samples(mix: SampleSource, sample_ranges: Iterable[int]) -> Sample:
    """Return the samples of a micro-batch, stacked into arrays: field -> [B, ...]."""
    samples = [mix.sample(number) for number in sample_ranges]
    return {field: np.stack([sample[field] for sample in samples]) for field in samples[0]}


def batch_to_tensors(batch: Sample, pin: bool = False) -> MicroBatch:
    """Convert the arrays of a micro-batch to tensors that share their memory. `pin` copies them to pinned memory for
    asynchronous transfers to a GPU."""
    tensors = {field: torch.from_numpy(array) for field, array in batch.items()}
    return {field: tensor.pin_memory() for field, tensor in tensors.items()} if pin else tensors


class BatchMemory:
    """Memory for micro-batches that is shared with the processes forked later.

    It is anonymous, so it does not count against the shared-memory folder, which is small in containers. A pipe would
    split the data and copy it four times.
    """

    def __init__(self, batch: BatchSpec, *, microbatch: int, capacity: int):
        """Reserve memory for `capacity` micro-batches of `microbatch` samples."""
        self.capacity = capacity
        self._layout: dict[str, tuple[int, tuple[int, ...], np.dtype]] = {}
        self._size = 0
        for name, field in batch.fields.items():
            shape, dtype = (microbatch, *field.shape), np.dtype(field.dtype)
            self._layout[name] = (self._size, shape, dtype)
            self._size += -(-int(np.prod(shape)) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        try:
            self._memory = mmap.mmap(-1, self._size * capacity)
        except (OSError, OverflowError, ValueError) as error:
            raise UserError(
                f"{capacity} micro-batches of {self._size:,} bytes, which workers read ahead, do not fit into memory "
                f"({error}): lower data.workers or layout.microbatch."
            ) from None

    def arrays(self, micro_batch: int) -> Sample:
        """Return the fields of a micro-batch by name, each [samples, ...]. The memory is reused `capacity`
        micro-batches later."""
        first = micro_batch % self.capacity * self._size
        return {
            name: np.frombuffer(self._memory, dtype, int(np.prod(shape)), first + at).reshape(shape)
            for name, (at, shape, dtype) in self._layout.items()
        }


class _SharedBatches(Dataset):
    """Data set of a data loader's worker: it writes a micro-batch to shared memory and returns the names of its fields.
    A `UserError` is returned as a value, so that its message is unchanged."""

    def __init__(self, mix: SampleSource, memory: BatchMemory):
        self.mix = mix
        self.memory = memory

    def __getitem__(self, item: tuple[int, range]) -> UserError | list[str]:
        number, samples = item
        arrays = self.memory.arrays(number)
        try:
            with storage_errors_as_user_errors("a corpus"):
                for index, sample in enumerate(map(self.mix.sample, samples)):
                    for field, array in sample.items():
                        arrays[field][index] = array
        except UserError as error:
            return error
        return [*sample]


class _Processes:
    """Worker processes of a data loader, each of which reads `prefetch` micro-batches ahead."""

    def __init__(self, loader: Loader, workers: int, prefetch: int, *, pin: bool):
        self._pin = pin
        self._next = 0
        """Index of the next micro-batch, counted from the first that was read."""
        # One more, because workers start the next micro-batch when one has arrived and before it is copied.
        self._memory = BatchMemory(
            loader.mix.batch_spec, microbatch=loader.slice.microbatch, capacity=workers * prefetch + 1
        )
        handler = signal.getsignal(signal.SIGCHLD) or signal.SIG_DFL
        self._batches = self._start_workers(loader, workers, prefetch)
        # torch's handler would raise the loss of a worker at any point of the code, even in the middle of a step.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGCHLD, handler)

    def _start_workers(self, loader: Loader, workers: int, prefetch: int) -> Iterator[UserError | list[str]]:
        # Queues between processes use semaphores in shared memory.
        with storage_errors_as_user_errors(SHARED_MEMORY):
            batches = DataLoader(
                _SharedBatches(loader.mix, self._memory),
                batch_size=None,
                sampler=enumerate(loader.sample_ranges()),
                num_workers=workers,
                # Forked workers end with this process. The default of later Python versions is a fork server.
                multiprocessing_context="fork",
                prefetch_factor=prefetch,
                collate_fn=_return_unchanged,
                worker_init_fn=partial(_begin_worker, os.getpid()),
                # A separate generator: DataLoader samples a seed for its workers, which is unused here, and would
                # change the state of the generator for dropout.
                generator=torch.Generator(),
            )
            return iter(batches)

    def next(self) -> MicroBatch:
        try:
            fields = next(self._batches)
        except RuntimeError:
            for process in getattr(self._batches, "_workers", ()):
                if process.exitcode:
                    raise LostWorkerError(process.pid, process.exitcode) from None
            raise
        if isinstance(fields, UserError):
            raise fields
        arrays = self._memory.arrays(self._next)
        batch = batch_to_tensors({field: arrays[field] for field in fields}, self._pin)
        self._next += 1
        # A pinned batch is already a copy. Others are copied, because the memory is reused.
        return batch if self._pin else {name: tensor.clone() for name, tensor in batch.items()}

    def close(self) -> None:
        self._batches = iter(())  # deleting a DataLoader iterator ends its processes


class _Thread:
    """Thread of a data loader that reads `prefetch` micro-batches ahead."""

    def __init__(self, loader: Loader, prefetch: int, *, pin: bool):
        self._pin = pin
        # Two queues, of finished batches and of free slots, so that neither side has to poll.
        self._ready: queue.SimpleQueue[Sample | BaseException] = queue.SimpleQueue()
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(prefetch):
            self._room.put(None)
        self._closed = False
        arguments = (loader.mix, loader.sample_ranges())
        self._thread = threading.Thread(target=self._read_ahead, args=arguments, name="megaptm-data", daemon=True)
        self._thread.start()

    def _read_ahead(self, mix: SampleSource, sample_ranges: Iterator[range]) -> None:
        try:
            for samples in sample_ranges:
                self._room.get()
                if self._closed:
                    return
                with storage_errors_as_user_errors("a corpus"):
                    self._ready.put(stack_samples(mix, samples))
        except BaseException as error:  # raised by the consumer; a thread that fails silently would stall the run
            self._ready.put(error)

    def next(self) -> MicroBatch:
        item = self._ready.get()
        self._room.put(None)
        if isinstance(item, BaseException):
            raise item
        return batch_to_tensors(item, self._pin)

    def close(self) -> None:
        self._closed = True
        self._room.put(None)  # the thread may be waiting for a free slot
        self._thread.join(JOIN_SECONDS)


def _begin_worker(parent: int, number: int) -> None:
    """Make a data loader's worker end with its rank. A killed rank does not end its workers, and one that waits for a
    server would not notice."""
    end_with_parent(parent)()


def _return_unchanged(batch: Any) -> Any:
    return batch
