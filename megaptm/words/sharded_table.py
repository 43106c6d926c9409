"""A table of vectors, its rows dealt to the data ranks: rows are fetched, and what is to be added to them is sent."""

# R rows held here, U rows asked for, D width

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property

import numpy as np
import torch
import torch.distributed as dist

from megaptm.checkpoint.tensors import TensorPiece, TensorReader
from megaptm.families.words import LANES
from megaptm.parallel.groups import Ranks
from megaptm.words.kernels import add_rows, fill_uniform


@dataclass(frozen=True)
class Exchange:
    """Messages among data ranks, in host memory."""

    rank: int
    ranks: int
    group: dist.ProcessGroup | None
    """Absent for one rank alone."""

    @classmethod
    def open(cls, ranks: Ranks, timeout_minutes: float) -> Exchange:
        """Tables are in host memory, on machines with GPUs, too."""
        if ranks.data_size == 1:
            return cls(0, 1, None)
        group = dist.group.WORLD
        if dist.get_backend() != "gloo":
            group = dist.new_group(backend="gloo", timeout=timedelta(minutes=timeout_minutes))
        return cls(ranks.data, ranks.data_size, group)

    def all_to_all(self, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
        """What each rank has for this one, of what each has for each: arrays [n, ...] of one shape but n."""
        if self.group is None:
            return [*parts]
        got, theirs = self.swap(np.concatenate(parts), [len(part) for part in parts])
        return np.split(got, np.cumsum(theirs)[:-1])

    def swap(self, sent: np.ndarray, mine: Sequence[int]) -> tuple[np.ndarray, Sequence[int]]:
        """The same of one array [n, ...], the first `mine[0]` of which are for rank 0: what all have for this rank, in
        their order, and how many each. Large arrays are copied no more than once on the way."""
        if self.group is None:
            return sent, mine
        theirs = torch.empty(self.ranks, dtype=torch.int64)
        dist.all_to_all_single(theirs, torch.tensor(mine), group=self.group)
        got = torch.empty((int(theirs.sum()), *sent.shape[1:]), dtype=torch.from_numpy(sent).dtype)
        dist.all_to_all_single(got, torch.from_numpy(sent), theirs.tolist(), [*mine], group=self.group)
        return got.numpy(), theirs.tolist()

    def pass_on(self, numbers: np.ndarray) -> np.ndarray:
        """What the rank behind this one has for it, of what each has for the rank before: arrays of one shape."""
        if self.group is None:
            return numbers
        sent, got = torch.from_numpy(np.ascontiguousarray(numbers)), torch.empty(numbers.shape)
        sending = dist.isend(sent, (self.rank - 1) % self.ranks, group=self.group)
        dist.recv(got, (self.rank + 1) % self.ranks, group=self.group)
        assert sending is not None
        sending.wait()
        return got.numpy()

    def total(self, numbers: np.ndarray) -> np.ndarray:
        """The sum of all ranks' arrays of one shape, in their order."""
        found: np.ndarray = self.all_gather(numbers).sum(axis=0)
        return found

    def all_gather(self, numbers: np.ndarray) -> np.ndarray:
        """[ranks, ...]: an array of each rank, all of one shape."""
        if self.group is None:
            return numbers[None]
        mine = torch.from_numpy(np.ascontiguousarray(numbers))
        found = [torch.empty_like(mine) for _ in range(self.ranks)]
        dist.all_gather(found, mine, group=self.group)
        return np.stack([one.numpy() for one in found])


@dataclass(frozen=True)
class RowChange:
    """What a row of text has changed of a table."""

    rows: np.ndarray
    """int64 [U], rising"""
    moves: np.ndarray
    """int64 [U]: of how many updates each change is made."""
    values: np.ndarray
    """float32 [U, D]"""


def lane_edges(ranks: int) -> np.ndarray:
    """int64 [ranks + 1]: the first lane of each rank, and the number of all."""
    return np.array([LANES * rank // ranks for rank in range(ranks + 1)])


def lane_owners(ranks: int) -> np.ndarray:
    """int64 [LANES]: the rank that has each lane."""
    return np.repeat(np.arange(ranks), np.diff(lane_edges(ranks)))


class ShardedTable:
    """fp32 rows; row v is that of lane v % `LANES`, and each rank has consecutive lanes."""

    def __init__(self, name: str, rows: int, width: int, exchange: Exchange) -> None:
        self.name, self.rows, self.width, self.exchange = name, rows, width, exchange
        self._edges, self._owner = lane_edges(exchange.ranks), lane_owners(exchange.ranks)
        groups, lanes = -(-rows // LANES), int(self._edges[exchange.rank + 1] - self._edges[exchange.rank])
        self.shape = (groups, LANES, width)
        """Of the whole: row v is at [v // LANES, v % LANES]."""
        self.held = np.zeros((groups, lanes, width), np.float32)

    @property
    def first_lane(self) -> int:
        """Of those that are held."""
        return int(self._edges[self.exchange.rank])

    @cached_property
    def flat(self) -> np.ndarray:
        """float32 [R, D]: what is held; of one rank alone, row v of the table is row v."""
        return self.held.reshape(-1, self.width)

    def numbers(self) -> np.ndarray:
        """int64 [R]: which row of the whole each is."""
        groups, lanes, _ = self.held.shape
        return (np.arange(groups)[:, None] * LANES + self.first_lane + np.arange(lanes)).reshape(-1)

    def fill(self, seed: int, most: float) -> None:
        """U(-most, most), whatever the number of ranks; nothing in rows beyond the last."""
        numbers = self.numbers()
        fill_uniform(self.flat, numbers, seed, most)
        self.flat[numbers >= self.rows] = 0.0

    def fetch(self, rows: np.ndarray) -> np.ndarray:
        """float32 [U, D]: a copy of some rows, from the ranks that hold them; `rows` rise. All ranks ask at once."""
        order, numbers = self._dealt(rows)
        asked, theirs = self.exchange.swap(rows[order], numbers)
        got, _ = self.exchange.swap(self.flat[self._places(asked)], theirs)
        if self.exchange.ranks == 1:
            return got
        found = np.empty_like(got)
        found[order] = got
        return found

    def add(self, changes: Sequence[RowChange], rate: float) -> None:
        """Add what rows of text have changed, one after the other: first those of rank 0, then those of rank 1.

        All ranks do it at once. So a row is the sum of the same numbers in the same order, whoever holds it and whoever
        made them: see `kernels.add_rows`.
        """
        parts = ([getattr(change, name) for change in changes] for name in ("rows", "moves", "values"))
        joined = [some[0] if len(changes) == 1 else np.concatenate(some) for some in parts]
        # Stable, so that of each rank's rows those of the first change come first.
        order, numbers = self._dealt(joined[0])
        rows, moves, values = (self.exchange.swap(part[order], numbers)[0] for part in joined)
        add_rows(self.flat, self._places(rows), moves, values, rate)

    def piece(self) -> TensorPiece:
        """What a checkpoint has of it from this rank."""
        at = (0, self.first_lane, 0)
        return TensorPiece(f"weight/{self.name}", self.shape, at, self.held.shape, torch.from_numpy(self.held))

    def restore(self, reader: TensorReader) -> None:
        """From a checkpoint of any number of ranks."""
        self.held[:] = reader.read(f"weight/{self.name}", (0, self.first_lane, 0), self.held.shape).numpy()

    def _dealt(self, rows: np.ndarray) -> tuple[np.ndarray | slice, list[int]]:
        """An order by who holds them, and how many each does."""
        if self.exchange.ranks == 1:
            return slice(None), [len(rows)]
        owner = self._owner[rows % LANES]
        numbers: list[int] = np.bincount(owner, minlength=self.exchange.ranks).tolist()
        return np.argsort(owner, kind="stable"), numbers

    def _places(self, rows: np.ndarray) -> np.ndarray:
        """int64: where rows of this rank are in `flat`."""
        return rows // LANES * self.held.shape[1] + rows % LANES - self.first_lane
