"""Memory in which worker processes leave micro-batches for the process that reads them."""

from __future__ import annotations

import mmap

import numpy as np

from megaptm.batch import BatchSpec
from megaptm.errors import UserError
from megaptm.objectives.objective import Sample

ALIGNED = 64
"""Bytes at a multiple of which an array begins."""


class BatchMemory:
    """Room for some micro-batches, which this process has in common with those that it forks from here on.

    It has no name: a folder of shared memory, which containers keep small, does not bound it. A pipe would
    take it in pieces, and copy it four times.
    """

    def __init__(self, batch: BatchSpec, *, rows: int, number: int):
        self.number = number
        self._places: dict[str, tuple[int, tuple[int, ...], np.dtype]] = {}
        self._size = 0
        for name, field in batch.fields.items():
            shape, dtype = (rows, *field.shape), np.dtype(field.dtype)
            self._places[name] = (self._size, shape, dtype)
            self._size += -(-int(np.prod(shape)) * dtype.itemsize // ALIGNED) * ALIGNED
        try:
            self._memory = mmap.mmap(-1, self._size * number)
        except (OSError, OverflowError, ValueError) as error:
            raise UserError(
                f"{number} micro-batches of {self._size:,} bytes, which workers are ahead, do not fit into memory "
                f"({error}): lower data.workers or layout.microbatch."
            ) from None

    def arrays(self, micro_batch: int) -> Sample:
        """Field -> [rows, ...] of a micro-batch, in the place of the one that came `number` before it."""
        first = micro_batch % self.number * self._size
        return {
            name: np.frombuffer(self._memory, dtype, int(np.prod(shape)), first + at).reshape(shape)
            for name, (at, shape, dtype) in self._places.items()
        }
