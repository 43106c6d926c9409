"""Attention patterns by position: windows, chunks and blocks. No torch.

A pattern has three equivalent forms: a function of two positions (`attends`), tiles of queries and their keys, with
which attention skips other pairs, and the number of pairs in tiles. Tiles follow from the pattern's parameters alone:
nothing here grows with the square of the sequence length.
"""

# H heads, N blocks of a sequence

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

MAX_QUERIES = 128
"""Maximum number of queries per tile of a window attention pattern. Larger tiles compute more masked pairs; smaller
ones have small, slow products."""
MAX_QUERIES_OF_ALL = 512
"""Maximum number of queries per tile of an attention pattern, if each attends to all keys."""
MAX_SCORES = 1 << 27
"""Maximum number of scores that attention by tiles computes at once on a GPU: 256 MiB in bf16."""


@dataclass(frozen=True)
class Tile:
    """Tile of an attention pattern: some queries, and a superset of the keys to which they attend."""

    queries: slice
    keys: slice | np.ndarray
    """Positions of a tile's keys; or block indices [H, blocks]."""
    exact: bool = False
    """Whether every query of the tile attends to every key of the tile."""


class Pattern(ABC):
    """Attention pattern by position. Immutable, so that derived values are cached."""

    @abstractmethod
    def attends_to_all(self, length: int) -> bool:
        """Whether every position of a sequence attends to all in this pattern."""

    @abstractmethod
    def attends(self, head: Any, query: Any, key: Any, table: Any) -> Any:
        """Whether queries attend to keys in this pattern: arrays of heads and positions that broadcast, of numpy or
        torch. `table`: result of `table` for the sequence, as the same kind of array."""

    @abstractmethod
    def tiles(self, length: int) -> Iterator[Tile]:
        """Yield the tiles of the pattern for a sequence; each query is in one."""

    @property
    def key_block_size(self) -> int:
        """Return the number of positions of a block, if the tiles name their keys by the indices of blocks; else 0."""
        return 0

    def table(self, length: int) -> np.ndarray | None:
        """Return the table that `attends` looks up for a sequence, or None. The table has one head if all heads are
        equal."""
        return None

    def for_heads(self, *, layer: int | None = None, heads: range | None = None) -> Pattern:
        """Return the attention pattern of one layer, or of the heads of a rank, if these differ."""
        return self

    def pairs(self, length: int) -> int:
        """Return the number of pairs of query and key per head that attention with this pattern computes in a
        sequence."""
        return length * length if self.is_dense(length) else _count_pairs(self, length)

    def is_dense(self, length: int) -> bool:
        """Whether tiles of the pattern would skip so little that attention computes all pairs."""
        return self.attends_to_all(length) or 4 * _count_pairs(self, length) > 3 * length * length


@lru_cache(maxsize=4096)
def _count_pairs(pattern: Pattern, length: int) -> int:
    positions, total = range(length), 0
    for tile in pattern.tiles(length):
        queries = len(positions[tile.queries])
        if isinstance(tile.keys, slice):
            total += queries * len(positions[tile.keys])
        else:
            total += queries * tile.keys.shape[1] * pattern.key_block_size
    return total


@dataclass(frozen=True)
class AllPairs(Pattern):
    """Attention pattern in which every position attends to all."""

    def attends_to_all(self, length: int) -> bool:
        return True

    def attends(self, head: Any, query: Any, key: Any, table: Any) -> Any:
        return (query == query) & (key == key)

    def tiles(self, length: int) -> Iterator[Tile]:
        for start in range(0, length, MAX_QUERIES_OF_ALL):
            yield Tile(slice(start, min(start + MAX_QUERIES_OF_ALL, length)), slice(0, length), exact=True)


@dataclass(frozen=True)
class SlidingWindow(Pattern):
    """Attention pattern of a window: `before` and `after` steps of `dilation` positions; positions in between are
    skipped (Longformer, arXiv:2004.05150, figure 2)."""

    before: int
    after: int
    dilation: int = 1

    def attends_to_all(self, length: int) -> bool:
        return self.dilation == 1 and min(self.before, self.after) >= length - 1

    def attends(self, head: Any, query: Any, key: Any, table: Any) -> Any:
        step = key - query
        near = (step >= -self.before * self.dilation) & (step <= self.after * self.dilation)
        return near if self.dilation == 1 else near & (step % self.dilation == 0)

    def tiles(self, length: int) -> Iterator[Tile]:
        queries = min(MAX_QUERIES, 1 << (max(self.before, self.after, 1) - 1).bit_length())
        # A position attends only to positions whole steps away: each residue is a sequence of its own.
        for first in range(min(self.dilation, length)):
            run = len(range(first, length, self.dilation))
            for start in range(0, run, queries):
                stop = min(start + queries, run)
                keys = max(0, start - self.before), min(run, stop + self.after)
                yield Tile(self._key_slice(first, start, stop), self._key_slice(first, *keys))

    def _key_slice(self, first: int, start: int, stop: int) -> slice:
        return slice(first + start * self.dilation, first + (stop - 1) * self.dilation + 1, self.dilation)


@lru_cache(maxsize=64)
def attended_blocks(pattern: Pattern | None, length: int, block: int, *, causal: bool) -> np.ndarray:
    """Return which blocks of queries attend to any position of which blocks of keys, [H, N, N]; one head if all are
    equal. Only tiles are evaluated."""
    number = -(-length // block)
    if pattern is None:
        attended = np.ones((1, number, number), dtype=bool)
        return np.tril(attended) if causal else attended
    positions, table = np.arange(length), pattern.table(length)
    attended = np.zeros((1 if table is None else len(table), number, number), dtype=bool)
    heads = np.arange(len(attended))[:, None, None]
    for tile in pattern.tiles(length):
        queries, keys = positions[tile.queries], _tile_keys(pattern, tile, positions)
        query, key = queries[None, :, None], keys[:, None, :]
        if tile.exact and not causal:
            # All pairs of a tile attend, so one position represents its block.
            attended[heads, np.unique(queries // block)[None, :, None], keys[:, None, :] // block] = True
            continue
        near = np.broadcast_to(pattern.attends(heads, query, key, table), (len(attended), len(queries), keys.shape[1]))
        head, row, column = np.nonzero(near & (key <= query) if causal else near)
        attended[head, queries[row] // block, keys[head if len(keys) > 1 else 0, column] // block] = True
    return attended


def _tile_keys(pattern: Pattern, tile: Tile, positions: np.ndarray) -> np.ndarray:
    """Return the key positions of an attention pattern's tile, [H or 1, k]."""
    if isinstance(tile.keys, slice):
        return positions[tile.keys][None]
    block = pattern.key_block_size
    keys = (tile.keys[:, :, None] * block + np.arange(block)).reshape(len(tile.keys), -1)
    return np.minimum(keys, len(positions) - 1)
