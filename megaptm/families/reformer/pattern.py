"""Pattern of local attention (released code of Reformer)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from megaptm.layers.pattern import Pattern, Tile


@dataclass(frozen=True)
class ChunkPairs(Pattern):
    """Pattern of local attention: a position attends to its own chunk of the sequence and the previous one, regardless
    of documents (released code of Reformer, arXiv:2001.04451)."""

    chunk: int

    def attends_to_all(self, length: int) -> bool:
        return length <= self.chunk

    def attends(self, head: Any, query: Any, key: Any, table: Any) -> Any:
        back = query // self.chunk - key // self.chunk
        return (back == 0) | (back == 1)

    def tiles(self, length: int) -> Iterator[Tile]:
        for start in range(0, length, self.chunk):
            stop = min(start + self.chunk, length)
            yield Tile(slice(start, stop), slice(max(0, start - self.chunk), stop))
