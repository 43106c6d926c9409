"""The shards of a split, a few of them open at a time."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

from megaptm.data.lru import LRUCache
from megaptm.data.shards import Corpus, Shard, ShardInfo, Verify


class OpenShards:
    """The shards of a split, opened when touched and checked the first time."""

    def __init__(self, corpus: Corpus, split: str, verify: Verify, most_open: int):
        self.corpus = corpus
        self.table = corpus.split(split).shards
        # A shard without documents has nothing to be found in it.
        self.rows = np.flatnonzero(self.table.rows["samples"])
        """int64 [shards]: the row of the table that says what each is."""
        self.verify = verify
        # One byte a shard, shared with the loader's forked processes: each shard is hashed once, whoever comes first.
        self._checked = mmap.mmap(-1, len(self.rows))
        self.get: LRUCache[int, Shard] = LRUCache(self._open, most_open)

    def __len__(self) -> int:
        return len(self.rows)

    def info(self, number: int) -> ShardInfo:
        return self.table[int(self.rows[number])]

    def sums(self, column: str) -> np.ndarray:
        """int64 [shards]: a column of the table."""
        return self.table.rows[column][self.rows]

    def _open(self, number: int) -> Shard:
        verify = "none" if self._checked[number] else self.verify
        shard = self.corpus.open_shard(self.info(number), verify)
        vocabulary = self.corpus.manifest.tokenizer["vocabulary"]
        if self.verify != "hash":
            shard.vocabulary = vocabulary  # its bytes may change between two reads, and nobody would know
        elif not self._checked[number]:
            shard.check_ids(vocabulary)
        self._checked[number] = 1
        return shard

    def bring(self, numbers: np.ndarray, *, wait: bool) -> None:
        """Have shards fetched that are elsewhere: those about to be opened, or without `wait` those that come next."""
        if self.corpus.mirror:
            self.corpus.bring([self.info(number) for number in numbers.tolist()], wait=wait)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_checked"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _checked=mmap.mmap(-1, len(state["rows"])))
