"""Block-sparse pattern with random blocks (BigBird, arXiv:2007.14062, section 2)."""

# H heads, N blocks of a sequence

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from megaptm.layers.pattern import Pattern, Tile


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
    """Attention heads of BigBird's pattern that are on this tensor rank."""
    seed: int = 0

    @property
    def key_block_size(self) -> int:
        return self.block

    def for_heads(self, *, layer: int | None = None, heads: range | None = None) -> SparseBlocks:
        return replace(self, layer=self.layer if layer is None else layer, heads=self.heads if heads is None else heads)

    def num_blocks(self, length: int) -> int:
        """Return the number of BigBird's blocks in a sequence."""
        return -(-length // self.block)

    def attends_to_all(self, length: int) -> bool:
        """Whether a sequence is so short that block-sparse attention computes all pairs, because most blocks would be
        chosen at random, as in the released code."""
        return length <= (5 + 2 * self.random) * self.block

    def attends(self, head: Any, query: Any, key: Any, table: Any) -> Any:
        return table[head, query // self.block, key // self.block]

    def table(self, length: int) -> np.ndarray:
        """Return the block table [H, N, N] of block-sparse attention."""
        attended = np.zeros((len(self.heads), self.num_blocks(length), self.num_blocks(length)), dtype=bool)
        for row, keys in enumerate(_block_rows(self, self.num_blocks(length))):
            np.put_along_axis(attended[:, row], keys, True, axis=1)
        return attended

    def tiles(self, length: int) -> Iterator[Tile]:
        for row, keys in enumerate(_block_rows(self, self.num_blocks(length))):
            queries = slice(row * self.block, min(length, (row + 1) * self.block))
            if keys.shape[1] == self.num_blocks(length):
                yield Tile(queries, slice(0, length), exact=True)
            else:
                yield Tile(queries, keys, exact=True)


@lru_cache(maxsize=64)
def _block_rows(pattern: SparseBlocks, number: int) -> list[np.ndarray]:
    """Return for each of `number` blocks the blocks to which it attends, [H, blocks]."""
    heads = len(pattern.heads)
    edges = {0, number - 1} if pattern.edges else set()
    sampled = np.stack([_random_blocks(pattern, number, head) for head in pattern.heads])
    rows = []
    for row in range(number):
        if row in edges:
            rows.append(np.tile(np.arange(number), (heads, 1)))
            continue
        fixed = sorted({row - 1, row, row + 1} & {*range(number)} | edges)
        rows.append(np.concatenate([np.tile(fixed, (heads, 1)), sampled[:, row]], axis=1))
    return rows


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
