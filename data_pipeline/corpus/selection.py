"""Which documents go where, decided from hashes and sizes alone, one part after the other: no table of all is held."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

EVERY = 1 << 64
"""A bound that all 64-bit hashes lie below."""

HELD = 0.02
"""Share of the documents that is held out unless another is given."""
LEAST_HELD, MOST_HELD = 64 << 10, 0.2
"""Then at least so many bytes are held out, but no more than about this share of all: a run is validated on whole
batches, of which 0.02 of little text are none."""


class Documents(Protocol):
    """A part, as far as choosing goes."""

    @property
    def digests(self) -> np.ndarray:
        """uint64 [n, 2]: 128-bit hashes of the texts."""
        ...

    @property
    def sizes(self) -> np.ndarray:
        """int64 [n]: bytes of the texts."""
        ...


DocumentRows = tuple[int, np.ndarray]
"""Number of a part, int64 rows of it, rising."""


@dataclass(frozen=True)
class Selection:
    """Rules on a document's hashes. A document's split depends on its text and the seed, so that adding sources later
    moves no document across; or some into training, where the least text to hold out was more than its share."""

    parts: Sequence[Documents]
    stays: Callable[[int], np.ndarray]
    """Number of a part -> bool [n]: what is left after deduplication."""
    below: int
    """Bound on the first hash: what lies beyond was asked to be left out."""
    salt: np.uint64
    held_below: int
    """Bound on the second hash, salted: what lies below is held out for validation."""

    def rows(self, number: int) -> dict[str, np.ndarray]:
        """`train`, `validation` -> int64 rows of a part, rising."""
        digests = self.parts[number].digests
        within = self.stays(number) & _less(digests[:, 0], self.below)
        held = _less(digests[:, 1] ^ self.salt, self.held_below)
        return {"train": np.flatnonzero(within & ~held), "validation": np.flatnonzero(within & held)}

    def places(self, split: str) -> Iterator[DocumentRows]:
        """All documents of a split."""
        for number in range(len(self.parts)):
            rows = self.rows(number)[split]
            if len(rows):
                yield number, rows

    def share_of(self, num_bytes: int) -> float:
        """The share to hold out (`validation`) that is at least so much text."""
        return least_bound(lambda: _salted(self.parts, self.stays, self.below, self.salt), num_bytes) / EVERY

    def sample(self, split: str, limit_bytes: int) -> list[DocumentRows]:
        """A sample of a split, at most `limit_bytes` of text (one document at least), which depends on texts alone."""

        def hashes() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for number, rows in self.places(split):
                part = self.parts[number]
                yield part.digests[rows, 0], part.sizes[rows]

        bound = hash_bound(hashes, limit_bytes)
        return [
            (number, rows[chosen])
            for number, rows in self.places(split)
            if (chosen := _less(self.parts[number].digests[rows, 0], bound)).any()
        ]


def select(
    parts: Sequence[Documents],
    stays: Callable[[int], np.ndarray],
    *,
    validation: float | None = None,
    seed: int,
    limit_bytes: int | None = None,
) -> Selection:
    """Keep at most `limit_bytes` of what stays, and hold out a share of it: where none is given `HELD`, and of little
    text at least `LEAST_HELD` or `MOST_HELD` of all. But train always gets a document, and validation too where there
    are two."""
    below = EVERY if limit_bytes is None else hash_bound(lambda: _hashes(parts, stays), limit_bytes)
    salt = np.frombuffer(hashlib.blake2b(f"split {seed}".encode(), digest_size=8).digest(), dtype="<u8")[0]
    highest = total = 0
    for draws, sizes in _salted(parts, stays, below, salt):
        if len(draws):
            highest, total = max(highest, int(draws.max())), total + int(sizes.sum())
    held_below = 0
    if validation != 0 and total:
        wanted = 1 if validation is not None else max(min(LEAST_HELD, int(MOST_HELD * total)), 1)
        least = least_bound(lambda: _salted(parts, stays, below, salt), wanted)
        held_below = max(int((HELD if validation is None else validation) * EVERY), least)
    return Selection(parts, stays, below, salt, min(held_below, highest))


def _salted(
    parts: Sequence[Documents], stays: Callable[[int], np.ndarray], below: int, salt: np.uint64
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """What decides the split of the documents that are kept, and their sizes."""
    for number, part in enumerate(parts):
        kept = stays(number) & _less(part.digests[:, 0], below)
        yield part.digests[kept, 1] ^ salt, part.sizes[kept]


def _hashes(parts: Sequence[Documents], stays: Callable[[int], np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for number, part in enumerate(parts):
        rows = stays(number)
        yield part.digests[rows, 0], part.sizes[rows]


def hash_bound(hashes: Callable[[], Iterable[tuple[np.ndarray, np.ndarray]]], limit_bytes: int) -> int:
    """The largest bound such that documents with a hash below it have at most `limit_bytes` of text; or one document.

    `hashes()` gives (uint64 hashes, int64 sizes) batch by batch, and is read twice: first to find the 65,536th part of
    all hashes in which the bound lies, then to look at that.
    """
    if (near := _near(hashes, limit_bytes, "right")) is None:
        return EVERY
    values, totals, before = near
    count = int(np.searchsorted(totals, limit_bytes, side="right"))
    first, bound = int(values[0]), int(values[count])
    return bound if before or bound > first else first + 1


def least_bound(hashes: Callable[[], Iterable[tuple[np.ndarray, np.ndarray]]], num_bytes: int) -> int:
    """The smallest bound such that documents with a hash below it have `num_bytes` of text, or all that there is."""
    if (near := _near(hashes, num_bytes, "left")) is None:
        return EVERY
    values, totals, _ = near
    return int(values[np.searchsorted(totals, num_bytes, side="left")]) + 1


def _near(
    hashes: Callable[[], Iterable[tuple[np.ndarray, np.ndarray]]], num_bytes: int, side: Literal["left", "right"]
) -> tuple[np.ndarray, np.ndarray, int] | None:
    """Hashes near that of the document at which so much text ends, rising, the text up to each of them, and before
    all of them; None where there is less text."""
    sums = np.zeros(1 << 16, dtype=np.int64)
    for values, sizes in hashes():
        np.add.at(sums, _interval(values), sizes)
    totals = np.cumsum(sums)
    interval = int(np.searchsorted(totals, num_bytes, side=side))
    if interval == len(sums):
        return None
    before = int(totals[interval] - sums[interval])
    inside = [
        (values[here], sizes[here]) for values, sizes in hashes() if (here := _interval(values) == interval).any()
    ]
    values, sizes = (np.concatenate(column) for column in zip(*inside, strict=True))
    order = np.argsort(values, kind="stable")
    return values[order], before + np.cumsum(sizes[order]), before


def _interval(hashes: np.ndarray) -> np.ndarray:
    return (hashes >> np.uint64(48)).astype(np.int64)


def _less(values: np.ndarray, bound: int) -> np.ndarray:
    """Which of some uint64 lie below a bound that may be one more than any of them."""
    return np.ones(len(values), dtype=bool) if bound >= EVERY else values < np.uint64(bound)


def shards_of(places: Iterable[DocumentRows], parts: Sequence[Documents], size: int) -> Iterator[list[DocumentRows]]:
    """Consecutive documents in shards of about `size` bytes of text; a shard begins where its first document does."""
    total, stretch = 0, -1
    shard: list[DocumentRows] = []
    for number, rows in places:
        sizes = parts[number].sizes[rows]
        begins = (total + np.cumsum(sizes) - sizes) // size
        total += int(sizes.sum())
        for piece in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(begins)) + 1):
            if shard and begins[piece[0]] != stretch:
                yield shard
                shard = []
            stretch = int(begins[piece[0]])
            shard.append((number, rows[piece]))
    if shard:
        yield shard
