"""Embedding table sharded over data ranks by rows: rows are fetched, and changes are sent to their owner."""

# R rows held here, U requested rows, D width

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property

import numpy as np
import torch
import torch.distributed as dist

from megaptm.checkpoint.tensors import TensorPiece, TensorReader
from megaptm.families.word_vectors import LANES
from megaptm.families.word_vectors.compiled.kernels import add_rows, fill_uniform
from megaptm.parallel.collectives import send_to_previous
from megaptm.parallel.groups import Ranks


@dataclass(frozen=True)
class Exchange:
    """Communication between the data ranks that train word vectors, in host memory."""

    rank: int
    ranks: int
    group: dist.ProcessGroup | None
    """Process group of the data ranks; None for a single rank."""

    @classmethod
    def open(cls, ranks: Ranks, timeout_minutes: float) -> Exchange:
        """Open the process group of the data ranks that train word vectors. It uses gloo even with GPUs, because tables
        are in host memory."""
        if ranks.data_size == 1:
            return cls(0, 1, None)
        group = dist.group.WORLD
        if dist.get_backend() != "gloo":
            group = dist.new_group(backend="gloo", timeout=timedelta(minutes=timeout_minutes))
        return cls(ranks.data, ranks.data_size, group)

    def all_to_all(self, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Exchange arrays of word vectors, one from each rank to each: `parts[r]` [n, ...] is sent to rank r, of equal
        shape except n. Return the array from each rank."""
        if self.group is None:
            return [*parts]
        received, sizes = self.all_to_all_single(np.concatenate(parts), [len(part) for part in parts])
        return np.split(received, np.cumsum(sizes)[:-1])

    def all_to_all_single(self, sent: np.ndarray, sizes: Sequence[int]) -> tuple[np.ndarray, Sequence[int]]:
        """Exchange one array [n, ...] of word vectors between all ranks, whose first `sizes[0]` elements are for rank 0
        and so on. Return the received elements in rank order, and their number per rank. Large arrays are copied at
        most once."""
        if self.group is None:
            return sent, sizes
        received_sizes = torch.empty(self.ranks, dtype=torch.int64)
        dist.all_to_all_single(received_sizes, torch.tensor(sizes), group=self.group)
        received = torch.empty((int(received_sizes.sum()), *sent.shape[1:]), dtype=torch.from_numpy(sent).dtype)
        dist.all_to_all_single(received, torch.from_numpy(sent), received_sizes.tolist(), [*sizes], group=self.group)
        return received.numpy(), received_sizes.tolist()

    def send_to_previous(self, values: np.ndarray) -> np.ndarray:
        """Send an array of word vectors to the previous rank and return that of the next rank, of equal shape."""
        if self.group is None:
            return values
        return send_to_previous(
            torch.from_numpy(np.ascontiguousarray(values)), self.rank, self.ranks, self.group
        ).numpy()

    def all_reduce(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of all ranks' arrays in the training of word vectors, in rank order."""
        total: np.ndarray = self.all_gather(values).sum(axis=0)
        return total

    def all_gather(self, values: np.ndarray) -> np.ndarray:
        """Return the arrays of all ranks in the training of word vectors, which have one shape, [ranks, ...]."""
        if self.group is None:
            return values[None]
        sent = torch.from_numpy(np.ascontiguousarray(values))
        gathered = [torch.empty_like(sent) for _ in range(self.ranks)]
        dist.all_gather(gathered, sent, group=self.group)
        return np.stack([tensor.numpy() for tensor in gathered])


@dataclass(frozen=True)
class RowChange:
    """Changes of a sequence to rows of a word vector table."""

    rows: np.ndarray
    """Rows in ascending order, int64 [U]."""
    num_updates: np.ndarray
    """Number of updates in each change, int64 [U]."""
    values: np.ndarray
    """Changes of the rows, float32 [U, D]."""


def _lane_edges(ranks: int) -> np.ndarray:
    """Return the first lane of each rank in a sharded table of word vectors, then the number of lanes, int64 [ranks +
    1]."""
    return np.array([LANES * rank // ranks for rank in range(ranks + 1)])


def lane_owners(ranks: int) -> np.ndarray:
    """Return the rank that holds each lane of a sharded table of word vectors, int64 [LANES]."""
    return np.repeat(np.arange(ranks), np.diff(_lane_edges(ranks)))


class ShardedTable:
    """Table of float32 rows, sharded over data ranks. A lane is every `LANES`-th row: row v belongs to lane v %
    `LANES`. Each rank holds consecutive lanes."""

    def __init__(self, name: str, rows: int, width: int, exchange: Exchange) -> None:
        self.name, self.rows, self.width, self.exchange = name, rows, width, exchange
        self._edges, self._owner = _lane_edges(exchange.ranks), lane_owners(exchange.ranks)
        groups, lanes = -(-rows // LANES), int(self._edges[exchange.rank + 1] - self._edges[exchange.rank])
        self.shape = (groups, LANES, width)
        """Shape of the full table: row v is at [v // LANES, v % LANES]."""
        self.held = np.zeros((groups, lanes, width), np.float32)

    @property
    def first_lane(self) -> int:
        """Return the first lane of the word vectors' table that this rank holds."""
        return int(self._edges[self.exchange.rank])

    @cached_property
    def flat(self) -> np.ndarray:
        """Return the rows of the word vectors' table that this rank holds, float32 [R, D]. On a single rank, row v of
        the table is row v."""
        return self.held.reshape(-1, self.width)

    def row_ids(self) -> np.ndarray:
        """Return the index in the full table of word vectors of each row that this rank holds, int64 [R]."""
        groups, lanes, _ = self.held.shape
        return (np.arange(groups)[:, None] * LANES + self.first_lane + np.arange(lanes)).reshape(-1)

    def init_weights(self, seed: int, bound: float) -> None:
        """Fill the sharded table of word vectors with U(-bound, bound), independent of the number of ranks; rows after
        the last stay 0."""
        row_ids = self.row_ids()
        fill_uniform(self.flat, row_ids, seed, bound)
        self.flat[row_ids >= self.rows] = 0.0

    def fetch(self, rows: np.ndarray) -> np.ndarray:
        """Fetch copies of some rows of the word vectors' table from the ranks that hold them, float32 [U, D]; `rows`
        ascend. All ranks call this together."""
        order, sizes = self._by_owner(rows)
        requested, requested_sizes = self.exchange.all_to_all_single(rows[order], sizes)
        received, _ = self.exchange.all_to_all_single(self.flat[self._flat_index(requested)], requested_sizes)
        if self.exchange.ranks == 1:
            return received
        fetched = np.empty_like(received)
        fetched[order] = received
        return fetched

    def add(self, changes: Sequence[RowChange], rate: float) -> None:
        """Add the changes of sequences to the sharded table of word vectors one after the other, first those of rank 0,
        then of rank 1 and so on.

        All ranks call this together. A row is the sum of the same values in the same order for any number of ranks: see
        `kernels.add_rows`.
        """
        fields = ([getattr(change, name) for change in changes] for name in ("rows", "num_updates", "values"))
        joined = [arrays[0] if len(changes) == 1 else np.concatenate(arrays) for arrays in fields]
        # Stable, so that each rank's rows stay in the order of their changes.
        order, sizes = self._by_owner(joined[0])
        rows, num_updates, values = (self.exchange.all_to_all_single(array[order], sizes)[0] for array in joined)
        add_rows(self.flat, self._flat_index(rows), num_updates, values, rate)

    def piece(self) -> TensorPiece:
        """Return this rank's part of the word vectors' table for a checkpoint."""
        at = (0, self.first_lane, 0)
        return TensorPiece(f"weight/{self.name}", self.shape, at, self.held.shape, torch.from_numpy(self.held))

    def restore(self, reader: TensorReader) -> None:
        """Restore the sharded table of word vectors from a checkpoint of any number of ranks."""
        self.held[:] = reader.read(f"weight/{self.name}", (0, self.first_lane, 0), self.held.shape).numpy()

    def _by_owner(self, rows: np.ndarray) -> tuple[np.ndarray | slice, list[int]]:
        """Return the order of rows by the rank that owns them, and the number of rows per owner."""
        if self.exchange.ranks == 1:
            return slice(None), [len(rows)]
        owner = self._owner[rows % LANES]
        sizes: list[int] = np.bincount(owner, minlength=self.exchange.ranks).tolist()
        return np.argsort(owner, kind="stable"), sizes

    def _flat_index(self, rows: np.ndarray) -> np.ndarray:
        """Return where rows of the table that this rank holds are in its flat part, as int64 indices."""
        return rows // LANES * self.held.shape[1] + rows % LANES - self.first_lane


class RotatingTable(ShardedTable):
    """Table of GloVe's context words, sharded over data ranks. Each `rotate` sends one lane to the previous rank.

    GloVe's words are in another sharded table, which stays. After n calls, the rank with lanes [a, b) of the word table
    holds lanes [a + n, b + n) of the context table. So lane a of the word table meets lane a + n of the context table
    in round n, for any number of ranks. Pairs of lanes in one round are independent, so the result is bitwise that of
    one process. All rounds together send the full table.

    Source: Gemulla et al., KDD 2011, `Large-scale matrix factorization with distributed stochastic gradient descent`.
    """

    def rotate_lanes(self, round_: int) -> None:
        """Rotate the lanes of GloVe's table between ranks after round `round_`, 0 to `LANES` - 1; after the last one
        all lanes are back. All ranks call this together."""
        lanes = self.held.shape[1]
        slot = round_ % lanes
        self.held[:, slot] = self.exchange.send_to_previous(self.held[:, slot])
        if round_ == LANES - 1:
            # If the number of held lanes does not divide LANES, the first one ends in another slot.
            self.held[:] = np.roll(self.held, -(LANES % lanes), axis=1)
