"""Attention patterns by position: windows, chunks and blocks. No torch.

A pattern has three equivalent forms: a function of two positions (`sees`), tiles of queries and their keys, with which
attention skips other pairs, and the number of pairs in tiles. Tiles follow from the pattern's parameters alone: nothing
here grows with the square of the sequence length.
"""

# H heads, N blocks of a sequence

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

MOST_QUERIES = 128
"""Queries per tile of a window. Larger tiles compute more masked pairs; smaller ones have small, slow products."""
MOST_QUERIES_OF_ALL = 512
"""Queries per tile if each attends to all keys."""


@dataclass(frozen=True)
class Tile:
    """Some queries, and a superset of the keys to which they attend."""

    queries: slice
    keys: slice | np.ndarray
    """Positions; or block indices [H, blocks]."""
    exact: bool = False
    """Whether every query of the tile attends to every key."""


class Pattern(ABC):
    """Attention pattern by position. Immutable, so that derived values are cached."""

    @abstractmethod
    def everything(self, length: int) -> bool:
        """Whether every position of a sequence attends to all."""

    @abstractmethod
    def sees(self, head: Any, query: Any, key: Any, table: Any) -> Any:
        """Whether queries attend to keys: arrays of heads and positions that broadcast, of numpy or torch. `table`:
        result of `table` for the sequence, as the same kind of array."""

    @abstractmethod
    def tiles(self, length: int) -> Iterator[Tile]:
        """Yield the tiles of a sequence; each query is in one."""

    @property
    def tile_block(self) -> int:
        """Positions of a block if tiles have block indices, else 0."""
        return 0

    def table(self, length: int) -> np.ndarray | None:
        """Return the table that `sees` looks up, or None. It has one head if all heads are equal."""
        return None

    def pairs(self, length: int) -> int:
        """Return the number of computed pairs of a sequence per head."""
        return length * length if self.dense(length) else _pairs(self, length)

    def dense(self, length: int) -> bool:
        """Whether tiles would skip so little that all pairs are computed."""
        return self.everything(length) or 4 * _pairs(self, length) > 3 * length * length


@lru_cache(maxsize=4096)
def _pairs(pattern: Pattern, length: int) -> int:
    positions, total = range(length), 0
    for tile in pattern.tiles(length):
        queries = len(positions[tile.queries])
        if isinstance(tile.keys, slice):
            total += queries * len(positions[tile.keys])
        else:
            total += queries * tile.keys.shape[1] * pattern.tile_block
    return total


@dataclass(frozen=True)
class AllPairs(Pattern):
    """Every position attends to all."""

    def everything(self, length: int) -> bool:
        return True

    def sees(self, head: Any, query: Any, key: Any, table: Any) -> Any:
        return (query == query) & (key == key)

    def tiles(self, length: int) -> Iterator[Tile]:
        for start in range(0, length, MOST_QUERIES_OF_ALL):
            yield Tile(slice(start, min(start + MOST_QUERIES_OF_ALL, length)), slice(0, length), exact=True)


@dataclass(frozen=True)
class SlidingWindow(Pattern):
    """Window of `before` and `after` steps of `dilation` positions; positions in between are skipped (Longformer,
    arXiv:2004.05150, figure 2)."""

    before: int
    after: int
    dilation: int = 1

    def everything(self, length: int) -> bool:
        return self.dilation == 1 and min(self.before, self.after) >= length - 1

    def sees(self, head: Any, query: Any, key: Any, table: Any) -> Any:
        step = key - query
        near = (step >= -self.before * self.dilation) & (step <= self.after * self.dilation)
        return near if self.dilation == 1 else near & (step % self.dilation == 0)

    def tiles(self, length: int) -> Iterator[Tile]:
        queries = min(MOST_QUERIES, 1 << (max(self.before, self.after, 1) - 1).bit_length())
        # A position attends only to positions whole steps away: each residue is a sequence of its own.
        for first in range(min(self.dilation, length)):
            run = len(range(first, length, self.dilation))
            for start in range(0, run, queries):
                stop = min(start + queries, run)
                keys = max(0, start - self.before), min(run, stop + self.after)
                yield Tile(self._places(first, start, stop), self._places(first, *keys))

    def _places(self, first: int, start: int, stop: int) -> slice:
        return slice(first + start * self.dilation, first + (stop - 1) * self.dilation + 1, self.dilation)


@dataclass(frozen=True)
class ChunkPairs(Pattern):
    """A position attends to its own chunk of the sequence and the previous one, regardless of documents (released code
    of Reformer, arXiv:2001.04451)."""

    chunk: int

    def everything(self, length: int) -> bool:
        return length <= self.chunk

    def sees(self, head: Any, query: Any, key: Any, table: Any) -> Any:
        back = query // self.chunk - key // self.chunk
        return (back == 0) | (back == 1)

    def tiles(self, length: int) -> Iterator[Tile]:
        for start in range(0, length, self.chunk):
            stop = min(start + self.chunk, length)
            yield Tile(slice(start, stop), slice(max(0, start - self.chunk), stop))


@dataclass(frozen=True)
class SparseBlocks(Pattern):
    """Block-sparse pattern (BigBird, arXiv:2007.14062, section 2): each block attends to itself, its neighbors, and
    `random` others, which differ by head and layer.

    With `edges` the first and last block attend to all and are attended by all (the paper's ITC). Otherwise the global
    tokens of a batch do (its ETC).
    """

    block: int
    random: int
    edges: bool = True
    layer: int = 0
    heads: range = range(1)
    """Heads of the layer that are on this rank."""
    seed: int = 0

    @property
    def tile_block(self) -> int:
        return self.block

    def count(self, length: int) -> int:
        return -(-length // self.block)

    def everything(self, length: int) -> bool:
        """Whether a sequence is so short that most blocks would be chosen at random, as in the released code."""
        return length <= (5 + 2 * self.random) * self.block

    def sees(self, head: Any, query: Any, key: Any, table: Any) -> Any:
        return table[head, query // self.block, key // self.block]

    def table(self, length: int) -> np.ndarray:
        """Return the block table [H, N, N]."""
        seen = np.zeros((len(self.heads), self.count(length), self.count(length)), dtype=bool)
        for row, keys in enumerate(_block_rows(self, self.count(length))):
            np.put_along_axis(seen[:, row], keys, True, axis=1)
        return seen

    def tiles(self, length: int) -> Iterator[Tile]:
        for row, keys in enumerate(_block_rows(self, self.count(length))):
            queries = slice(row * self.block, min(length, (row + 1) * self.block))
            if keys.shape[1] == self.count(length):
                yield Tile(queries, slice(0, length), exact=True)
            else:
                yield Tile(queries, keys, exact=True)


@lru_cache(maxsize=64)
def _block_rows(pattern: SparseBlocks, number: int) -> list[np.ndarray]:
    """Return for each of `number` blocks the blocks to which it attends, [H, blocks]."""
    heads = len(pattern.heads)
    edges = {0, number - 1} if pattern.edges else set()
    drawn = np.stack([_random_blocks(pattern, number, head) for head in pattern.heads])
    rows = []
    for row in range(number):
        if row in edges:
            rows.append(np.tile(np.arange(number), (heads, 1)))
            continue
        fixed = sorted({row - 1, row, row + 1} & {*range(number)} | edges)
        rows.append(np.concatenate([np.tile(fixed, (heads, 1)), drawn[:, row]], axis=1))
    return rows


@lru_cache(maxsize=64)
def blocks_seen(pattern: Pattern | None, length: int, block: int, *, causal: bool) -> np.ndarray:
    """Return which blocks of queries attend to any position of which blocks of keys, [H, N, N]; one head if all are
    equal. Only tiles are evaluated."""
    number = -(-length // block)
    if pattern is None:
        seen = np.ones((1, number, number), dtype=bool)
        return np.tril(seen) if causal else seen
    places, table = np.arange(length), pattern.table(length)
    seen = np.zeros((1 if table is None else len(table), number, number), dtype=bool)
    heads = np.arange(len(seen))[:, None, None]
    for tile in pattern.tiles(length):
        queries, keys = places[tile.queries], _tile_keys(pattern, tile, places)
        query, key = queries[None, :, None], keys[:, None, :]
        if tile.exact and not causal:
            # All pairs of a tile attend, so one position represents its block.
            seen[heads, np.unique(queries // block)[None, :, None], keys[:, None, :] // block] = True
            continue
        near = np.broadcast_to(pattern.sees(heads, query, key, table), (len(seen), len(queries), keys.shape[1]))
        head, row, column = np.nonzero(near & (key <= query) if causal else near)
        seen[head, queries[row] // block, keys[head if len(keys) > 1 else 0, column] // block] = True
    return seen


def _tile_keys(pattern: Pattern, tile: Tile, places: np.ndarray) -> np.ndarray:
    """Return positions, [H or 1, k]."""
    if isinstance(tile.keys, slice):
        return places[tile.keys][None]
    block = pattern.tile_block
    keys = (tile.keys[:, :, None] * block + np.arange(block)).reshape(len(tile.keys), -1)
    return np.minimum(keys, len(places) - 1)


def _random_blocks(pattern: SparseBlocks, number: int, head: int) -> np.ndarray:
    """Return for each of `number` blocks `random` others to which it would not attend otherwise, [N, random].

    A function of seed, layer, head and number of blocks, so that all ranks agree, and evaluation uses the blocks of
    training.
    """
    digest = hashlib.sha256(f"blocks:{pattern.layer}:{head}".encode()).digest()
    # The seed is the highest of the counter's four words: no stream is long enough to reach that of another seed.
    philox = np.random.Philox(key=int.from_bytes(digest[:16], "little"), counter=[0, 0, 0, pattern.seed])
    generator = np.random.Generator(philox)
    lowest, highest = (1, number - 2) if pattern.edges else (0, number - 1)
    rows = np.arange(number)
    # Candidates are numbered without the neighbors, which are contiguous.
    begin, end = np.maximum(rows - 1, lowest), np.minimum(rows + 1, highest)
    near = np.maximum(end - begin + 1, 0)
    candidates = highest - lowest + 1 - near
    chosen = np.full((number, pattern.random), -1)
    # Floyd's algorithm: distinct numbers below n, every set equally likely.
    for turn in range(pattern.random):
        last = candidates - pattern.random + turn
        pick = (generator.random(number) * (last + 1)).astype(np.int64)
        taken = (chosen[:, :turn] == pick[:, None]).any(axis=1)
        chosen[:, turn] = np.where(taken, last, pick)
    blocks = chosen + lowest
    return np.where(blocks >= begin[:, None], blocks + near[:, None], blocks)
