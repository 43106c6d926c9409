"""Copies of tensors in host memory, from which a checkpoint is written while training continues."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from megaptm.checkpoint.tensors import TensorPiece

# torch rounds pinned memory up to a power of two, so a buffer of such a size wastes nothing.
BUFFER_BYTES = 256 << 20
ALIGNED_BYTES = 64


class HostStaging:
    """Host memory for copies of tensors, reused for each checkpoint because allocating it takes longer than copying."""

    def __init__(self) -> None:
        self._buffers: dict[bool, list[Tensor]] = {False: [], True: []}
        """Host buffers; pinned (True) for copies from a GPU."""

    def copy_pieces(self, pieces: Iterable[TensorPiece]) -> list[TensorPiece]:
        """Return copies of the tensor pieces, so that training may change the tensors afterwards."""
        allocators = {pinned: _BufferAllocator(buffers, pinned) for pinned, buffers in self._buffers.items()}
        copies = []
        for piece in pieces:
            copy = allocators[piece.data.is_cuda].allocate_like(piece.data)
            copies.append(replace(piece, data=copy.copy_(piece.data.detach(), non_blocking=True)))
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return copies


class _BufferAllocator:
    """Allocator of consecutive parts of host buffers. It adds a buffer when none has space left."""

    def __init__(self, buffers: list[Tensor], pinned: bool) -> None:
        self._buffers, self._pinned = buffers, pinned
        self._index, self._used = 0, 0

    def allocate_like(self, tensor: Tensor) -> Tensor:
        """Return space in a host buffer for a contiguous tensor with this shape and dtype."""
        while self._index < len(self._buffers) and self._used + tensor.nbytes > len(self._buffers[self._index]):
            self._index, self._used = self._index + 1, 0
        if self._index == len(self._buffers):
            size = max(tensor.nbytes, BUFFER_BYTES)
            self._buffers.append(torch.empty(size, dtype=torch.uint8, pin_memory=self._pinned))
        space = self._buffers[self._index][self._used : self._used + tensor.nbytes]
        self._used += -(-tensor.nbytes // ALIGNED_BYTES) * ALIGNED_BYTES
        return space.view(tensor.dtype).view(tensor.shape)
