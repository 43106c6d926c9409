"""Which documents are kept, in which split and which shard: decided from their hashes and sizes, without their text."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from data_pipeline.build.parts import Part


@dataclass(frozen=True)
class Selection:
    """Rows are numbers of documents over all parts, rising; they double as the keys of samples."""

    splits: dict[str, np.ndarray]
    """`train` and `validation` -> int64 [documents]."""
    duplicates: int
    beyond_limit: int


class Table:
    """The documents of all parts as one."""

    def __init__(self, parts: Sequence[Part]):
        self.parts = parts
        self.digests = np.concatenate([part.digests for part in parts])
        self.sizes = np.concatenate([part.sizes for part in parts])
        self.starts = np.cumsum([0, *(len(part.sizes) for part in parts)])

    def __len__(self) -> int:
        return len(self.sizes)

    def places(self, rows: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        """Rising rows as (path of a part, int64 offsets in it)."""
        cuts = np.searchsorted(rows, self.starts)
        for part, begin, start, stop in zip(self.parts, self.starts, cuts, cuts[1:], strict=False):
            if stop > start:
                yield part.path, part.offsets[rows[start:stop] - begin]


def select(table: Table, *, validation: float, seed: int, limit_bytes: int | None = None) -> Selection:
    """Leave out exact duplicates, keep at most `limit_bytes` of text, and divide what is left by hash.

    A document's split depends on its text and the seed, so adding sources later moves no document across; but train
    always gets one, and validation too where there are two.
    """
    # The first of equal documents stays; np.unique returns first occurrences.
    _, first = np.unique(table.digests, axis=0, return_index=True)
    rows = np.sort(first)
    kept = rows if limit_bytes is None else smallest_hashes(table, rows, limit_bytes)
    salt = np.frombuffer(hashlib.blake2b(f"split {seed}".encode(), digest_size=8).digest(), dtype="<u8")
    draws = table.digests[kept, 1] ^ salt
    held_out = draws < np.uint64(min(int(validation * 2**64), 2**64 - 1))
    if validation > 0:
        held_out[draws.argmin()] = True
    held_out[draws.argmax()] = False
    return Selection(
        splits={"train": kept[~held_out], "validation": kept[held_out]},
        duplicates=len(table) - len(rows),
        beyond_limit=len(rows) - len(kept),
    )


def smallest_hashes(table: Table, rows: np.ndarray, limit_bytes: int) -> np.ndarray:
    """A sample of rows, at most `limit_bytes` of text (one document at least), that depends on their texts alone."""
    order = rows[np.argsort(table.digests[rows, 0], kind="stable")]
    count = np.searchsorted(np.cumsum(table.sizes[order]), limit_bytes, side="right")
    return np.sort(order[: max(1, count)])


def shards_of(table: Table, rows: np.ndarray, size: int) -> list[np.ndarray]:
    """Consecutive rows in shards of about `size` bytes of text; a shard begins where its first document does."""
    begins = np.cumsum(table.sizes[rows]) - table.sizes[rows]
    shards = np.split(rows, np.flatnonzero(np.diff(begins // size)) + 1)
    return [shard for shard in shards if len(shard)]
