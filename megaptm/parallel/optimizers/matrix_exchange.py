"""Full matrices from the parts that tensor and data ranks hold, for update rules that need a matrix whole.

Each matrix is gathered, changed and sent back by one process of its stage, its owner; all own about equally much.
"""

# M matrices of one shape, R rows and C columns

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from megaptm.parallel.groups import rank_device
from megaptm.parallel.optimizers.part import TensorPart, update_batches


@dataclass(frozen=True, order=True)
class MatrixPiece:
    """Range of the flattened slice of a matrix that a tensor rank has."""

    offset: tuple[int, ...]
    """First row and column of the slice."""
    shape: tuple[int, ...]
    """Rows and columns of the slice."""
    start: int
    stop: int


@dataclass(frozen=True)
class Message:
    """A piece of the matrix `index` that one process sends to another."""

    index: int
    piece: MatrixPiece
    source: int
    target: int


IndexedPiece = tuple[int, MatrixPiece]
"""Index of a matrix, and a piece of it."""


@dataclass(frozen=True)
class ExchangedBatch:
    """Pieces and messages of this process, for matrices that are exchanged at once."""

    own: Sequence[IndexedPiece]
    """Pieces of matrices that this process holds."""
    owned: Sequence[IndexedPiece]
    """Pieces of the matrices that this process changes."""
    gathered: Sequence[Message]
    returned: Sequence[Message]


class MatrixExchange:
    """Owners of matrices, and the messages to them and back. Matrices are exchanged in batches of bounded memory."""

    def __init__(self, parts: Sequence[TensorPart]) -> None:
        """Create the exchange of the matrices in `parts`. All tensor and data ranks of a stage must call this, with
        parts of the same matrices."""
        self._parts = parts
        self._group = parallel_state.get_tensor_and_data_parallel_group(with_context_parallel=True)
        self._rank, self._ranks = dist.get_rank(self._group), dist.get_world_size(self._group)
        held = gather_pieces([_held_piece(part) for part in parts], self._group)
        self._own_pieces = held[self._rank]
        sizes = [prod(part.placement.shape) for part in parts]
        # Data ranks that do not divide weights receive each matrix, so their number does not bound the memory.
        largest = max(sum(piece.stop - piece.start for piece in pieces if piece is not None) for pieces in held)
        divided_by = max(1, sum(sizes) // max(1, largest))
        self._batches = [self._plan_batch(held, batch, sizes) for batch in update_batches(sizes, divided_by)]

    def _plan_batch(
        self, held: Sequence[Sequence[MatrixPiece | None]], indices: Sequence[int], sizes: Sequence[int]
    ) -> ExchangedBatch:
        owners = _assign_owners([sizes[index] for index in indices], self._ranks)
        gathered, returned = [], []
        for index, owner in zip(indices, owners, strict=True):
            holders: dict[MatrixPiece, list[int]] = defaultdict(list)
            for rank, pieces in enumerate(held):
                if (piece := pieces[index]) is not None:
                    holders[piece].append(rank)
            for piece, ranks in sorted(holders.items()):
                gathered.append(Message(index, piece, _nearest_owner(ranks, owner), owner))
                returned += [Message(index, piece, owner, rank) for rank in ranks]
        own = [(index, piece) for index in indices if (piece := self._own_pieces[index]) is not None]
        owned = [(message.index, message.piece) for message in gathered if message.target == self._rank]
        return ExchangedBatch(own, owned, self._own_messages(gathered), self._own_messages(returned))

    def _own_messages(self, messages: Sequence[Message]) -> list[Message]:
        return [message for message in messages if self._rank in (message.source, message.target)]

    def map(self, local: Mapping[int, Tensor], function: Callable[[Tensor], Tensor]) -> Iterator[tuple[int, Tensor]]:
        """Yield for each matrix its index and this process's part of `function(matrix)`.

        - `local`: index of a matrix -> this process's part of it, shaped like `master`.
        - `function`: [M, R, C] -> [M, R, C] for matrices of one shape, in bfloat16 if the model is not in float32.
        """
        for batch in self._batches:
            dtype = torch.float32 if self._parts[0].parameter.dtype == torch.float32 else torch.bfloat16
            sent = (message for message in batch.gathered if message.source == self._rank)
            values = {(message.index, message.piece): local[message.index].reshape(-1).to(dtype) for message in sent}
            matrices = self._join_pieces(batch.owned, self._exchange_pieces(batch.gathered, values, dtype), dtype)
            del values
            changed = self._apply_by_shape(matrices, function)
            results = {
                (index, piece): _slice_piece(changed[index], piece).reshape(-1)[piece.start : piece.stop]
                for index, piece in batch.owned
            }
            returned = self._exchange_pieces(batch.returned, results, dtype)
            for index, piece in batch.own:
                yield index, returned[index, piece].view_as(local[index])

    def _join_pieces(
        self, owned: Sequence[IndexedPiece], pieces: dict[IndexedPiece, Tensor], dtype: torch.dtype
    ) -> dict[int, Tensor]:
        """Return the matrices that this process owns from their pieces, which are removed."""
        matrices: dict[int, Tensor] = {}
        slices: dict[tuple[int, tuple[int, ...]], Tensor] = {}
        for index, piece in owned:
            value, length = pieces.pop((index, piece)), prod(piece.shape)
            if index not in matrices:
                matrices[index] = torch.empty(self._parts[index].placement.shape, dtype=dtype, device=rank_device())
            if len(value) < length:
                if (index, piece.offset) not in slices:
                    slices[index, piece.offset] = torch.empty(length, dtype=dtype, device=rank_device())
                slices[index, piece.offset][piece.start : piece.stop] = value
                value = slices[index, piece.offset]
            if piece.stop == length:  # the last piece of a slice
                _slice_piece(matrices[index], piece).copy_(value.view(piece.shape))
                slices.pop((index, piece.offset), None)
        return matrices

    def _exchange_pieces(
        self, messages: Sequence[Message], values: Mapping[IndexedPiece, Tensor], dtype: torch.dtype
    ) -> dict[IndexedPiece, Tensor]:
        """Send messages and return those to this process, by matrix and piece."""
        if self._ranks == 1:
            return {(message.index, message.piece): values[message.index, message.piece] for message in messages}
        sent = sorted((m for m in messages if m.source == self._rank), key=lambda m: m.target)
        received = sorted((m for m in messages if m.target == self._rank), key=lambda m: m.source)
        send_counts, receive_counts = [0] * self._ranks, [0] * self._ranks
        for message in sent:
            send_counts[message.target] += message.piece.stop - message.piece.start
        for message in received:
            receive_counts[message.source] += message.piece.stop - message.piece.start
        empty = torch.empty(0, dtype=dtype, device=rank_device())
        outgoing = torch.cat([empty, *(values[message.index, message.piece] for message in sent)])
        incoming = torch.empty(sum(receive_counts), dtype=dtype, device=rank_device())
        dist.all_to_all_single(incoming, outgoing, receive_counts, send_counts, group=self._group)
        lengths = [message.piece.stop - message.piece.start for message in received]
        return {
            (message.index, message.piece): value
            for message, value in zip(received, incoming.split(lengths), strict=True)
        }

    def _apply_by_shape(
        self, matrices: Mapping[int, Tensor], function: Callable[[Tensor], Tensor]
    ) -> dict[int, Tensor]:
        """Apply `function` to all matrices of one shape at once, and return full tensors by index."""
        batches: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for index in matrices:
            part = self._parts[index]
            # Copies of a matrix on several stages must get equal updates, whatever other matrices these stages have.
            is_copied = hasattr(part.parameter, "shared_embedding")
            batches[part.full_length, part.full_width, index if is_copied else -1].append(index)
        changed: dict[int, Tensor] = {}
        for indices in batches.values():
            separate = [self._separate_matrices(index, matrices[index]) for index in indices]
            results = function(torch.cat(separate)).split([len(each) for each in separate])
            for index, result in zip(indices, results, strict=True):
                turns = self._parts[index].full_length // self._parts[index].placement.interleave
                changed[index] = result.unflatten(1, (turns, -1)).transpose(0, 1).reshape(matrices[index].shape)
        return changed

    def _separate_matrices(self, index: int, matrix: Tensor) -> Tensor:
        """Return the matrices that one tensor stores in turns, [M, R, C]."""
        placement = self._parts[index].placement
        return matrix.unflatten(0, (-1, placement.matrices, placement.interleave)).transpose(0, 1).flatten(1, 2)


def gather_pieces(pieces: list[MatrixPiece | None], group: dist.ProcessGroup) -> list[list[MatrixPiece | None]]:
    """Return for each process of a group the piece of each matrix that it holds."""
    held: list[list[MatrixPiece | None]] = [[] for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(held, pieces, group=group)
    return held


def _held_piece(part: TensorPart) -> MatrixPiece | None:
    if part.master is None:
        return None
    shape = tuple(part.parameter.shape)
    return MatrixPiece(part.placement.offset, shape, *(part.span or (0, prod(shape))))


def _slice_piece(matrix: Tensor, piece: MatrixPiece) -> Tensor:
    (row, column), (rows, columns) = piece.offset, piece.shape
    return matrix[row : row + rows, column : column + columns]


def _nearest_owner(ranks: Sequence[int], owner: int) -> int:
    """Return the rank among `ranks` that is nearest to the owner: the owner, else a tensor rank of the same data rank,
    else the first."""
    tensor = parallel_state.get_tensor_model_parallel_world_size()
    return min(ranks, key=lambda rank: (rank != owner, rank // tensor != owner // tensor, rank))


def _assign_owners(sizes: Sequence[int], ranks: int) -> list[int]:
    """Return the owner of each matrix: large ones first, each to the process with the least elements so far."""
    elements, owners = [0] * ranks, [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        owners[index] = elements.index(min(elements))
        elements[owners[index]] += sizes[index]
    return owners
