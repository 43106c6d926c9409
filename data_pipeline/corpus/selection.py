"""Assign documents to splits by their hashes and sizes. Parts are processed one at a time to bound memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

HASH_LIMIT = 1 << 64
"""Upper bound of all 64-bit hashes."""

VALIDATION_SHARE = 0.02
"""Default share of documents in the validation split."""
MIN_VALIDATION_BYTES, MAX_VALIDATION_SHARE = 64 << 10, 0.2
"""Minimum bytes of the default validation split, and its maximum share of all bytes.

Validation needs full batches, and a share of 0.02 of a small corpus is less than one.
"""


class Documents(Protocol):
    """Interface of the documents of a part, for their selection."""

    @property
    def digests(self) -> np.ndarray:
        """128-bit hashes of the texts of the part, uint64 [n, 2]."""
        ...

    @property
    def sizes(self) -> np.ndarray:
        """Bytes of the texts of the part, int64 [n]."""
        ...


DocumentRows = tuple[int, np.ndarray]
"""Type of some documents of a part: index of the part, and ascending int64 rows."""


@dataclass(frozen=True)
class Selection:
    """Assignment of documents to splits by their hashes.

    The split of a document depends only on its text and the seed, so adding sources later moves no document to another
    split. Exception: if the minimum validation size was in effect, some documents may move to training.
    """

    parts: Sequence[Documents]
    stays: Callable[[int], np.ndarray]
    """Documents that remain after deduplication, bool [n], by index of the part."""
    below: int
    """Bound on the first hash of a document. Documents at or above it exceed `limit_bytes`."""
    salt: np.uint64
    held_below: int
    """Bound on the salted second hash of a document. Documents below it are in the validation split."""

    def rows(self, number: int) -> dict[str, np.ndarray]:
        """Return the documents of a part in each split: `train` and `validation` -> ascending int64 rows."""
        digests = self.parts[number].digests
        within = self.stays(number) & _is_below(digests[:, 0], self.below)
        held = _is_below(digests[:, 1] ^ self.salt, self.held_below)
        return {"train": np.flatnonzero(within & ~held), "validation": np.flatnonzero(within & held)}

    def rows_by_part(self, split: str) -> Iterator[DocumentRows]:
        """Yield all documents of a split, part by part."""
        for number in range(len(self.parts)):
            rows = self.rows(number)[split]
            if len(rows):
                yield number, rows

    def share_of(self, num_bytes: int) -> float:
        """Return the share (`validation`) that puts at least `num_bytes` of text in the validation split."""
        return _min_bound(lambda: _salted_hashes(self.parts, self.stays, self.below, self.salt), num_bytes) / HASH_LIMIT

    def validation_share(self) -> float:
        """Return the share of the validation split in the bytes of all selected documents."""
        sizes = {"train": 0, "validation": 0}
        for number, part in enumerate(self.parts):
            for split, rows in self.rows(number).items():
                sizes[split] += int(part.sizes[rows].sum())
        return sizes["validation"] / max(1, sum(sizes.values()))

    def sample(self, split: str, limit_bytes: int) -> list[DocumentRows]:
        """Sample at most `limit_bytes` of text from a split, or one document, to train a tokenizer. The sample depends
        only on the texts."""

        def hashes() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for number, rows in self.rows_by_part(split):
                part = self.parts[number]
                yield part.digests[rows, 0], part.sizes[rows]

        bound = max_bound(hashes, limit_bytes)
        return [
            (number, rows[chosen])
            for number, rows in self.rows_by_part(split)
            if (chosen := _is_below(self.parts[number].digests[rows, 0], bound)).any()
        ]


def select_rows(
    parts: Sequence[Documents],
    stays: Callable[[int], np.ndarray],
    *,
    validation: float | None = None,
    seed: int,
    limit_bytes: int | None = None,
) -> Selection:
    """Select at most `limit_bytes` of the documents that remain after deduplication, and a share of them for
    validation.

    The default share is `VALIDATION_SHARE`, but at least `MIN_VALIDATION_BYTES` or `MAX_VALIDATION_SHARE` of all text,
    except a document that has more than half of it. Training always gets a document, and validation too if there are
    two.
    """
    below = HASH_LIMIT if limit_bytes is None else max_bound(lambda: _hashes_and_sizes(parts, stays), limit_bytes)
    salt = np.frombuffer(hashlib.blake2b(f"split {seed}".encode(), digest_size=8).digest(), dtype="<u8")[0]
    highest = total = largest = 0
    for draws, sizes in _salted_hashes(parts, stays, below, salt):
        if len(draws):
            highest, total = max(highest, int(draws.max())), total + int(sizes.sum())
            largest = max(largest, int(sizes.max()))
    held_below = 0
    if validation != 0 and total:
        # A giant document may be the only one that is large enough for the minimum, whatever the seed.
        ordinary = total - largest if 2 * largest > total else total
        min_bytes = (
            1 if validation is not None else max(min(MIN_VALIDATION_BYTES, int(MAX_VALIDATION_SHARE * ordinary)), 1)
        )
        lower_bound = _min_bound(lambda: _salted_hashes(parts, stays, below, salt), min_bytes)
        held_below = max(int((VALIDATION_SHARE if validation is None else validation) * HASH_LIMIT), lower_bound)
    return Selection(parts, stays, below, salt, min(held_below, highest))


def _salted_hashes(
    parts: Sequence[Documents], stays: Callable[[int], np.ndarray], below: int, salt: np.uint64
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield for each part the salted hashes, which decide the split, and the sizes of its selected documents."""
    for number, part in enumerate(parts):
        retained = stays(number) & _is_below(part.digests[:, 0], below)
        yield part.digests[retained, 1] ^ salt, part.sizes[retained]


def _hashes_and_sizes(
    parts: Sequence[Documents], stays: Callable[[int], np.ndarray]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for number, part in enumerate(parts):
        rows = stays(number)
        yield part.digests[rows, 0], part.sizes[rows]


def max_bound(hashes: Callable[[], Iterable[tuple[np.ndarray, np.ndarray]]], limit_bytes: int) -> int:
    """Return the largest bound on hashes such that documents below it have at most `limit_bytes` of text, or one
    document.

    `hashes()` yields batches of (uint64 hashes, int64 sizes) and is read twice: first to find the interval (of 65,536)
    that contains the bound, then to find the bound in it.
    """
    if (near := _interval_of_bound(hashes, limit_bytes, "right")) is None:
        return HASH_LIMIT
    values, totals, before = near
    count = int(np.searchsorted(totals, limit_bytes, side="right"))
    first, bound = int(values[0]), int(values[count])
    return bound if before or bound > first else first + 1


def _min_bound(hashes: Callable[[], Iterable[tuple[np.ndarray, np.ndarray]]], num_bytes: int) -> int:
    """Return the smallest bound on hashes such that documents below it have `num_bytes` of text, or all text."""
    if (near := _interval_of_bound(hashes, num_bytes, "left")) is None:
        return HASH_LIMIT
    values, totals, _ = near
    return int(values[np.searchsorted(totals, num_bytes, side="left")]) + 1


def _interval_of_bound(
    hashes: Callable[[], Iterable[tuple[np.ndarray, np.ndarray]]], num_bytes: int, side: Literal["left", "right"]
) -> tuple[np.ndarray, np.ndarray, int] | None:
    """Return the sorted hashes in the interval where the cumulative text reaches `num_bytes`, the cumulative text at
    each, and the text before the interval. None if there is less text."""
    sums = np.zeros(1 << 16, dtype=np.int64)
    for values, sizes in hashes():
        np.add.at(sums, _interval_of(values), sizes)
    totals = np.cumsum(sums)
    interval = int(np.searchsorted(totals, num_bytes, side=side))
    if interval == len(sums):
        return None
    before = int(totals[interval] - sums[interval])
    inside = [
        (values[here], sizes[here]) for values, sizes in hashes() if (here := _interval_of(values) == interval).any()
    ]
    values, sizes = (np.concatenate(column) for column in zip(*inside, strict=True))
    order = np.argsort(values, kind="stable")
    return values[order], before + np.cumsum(sizes[order]), before


def _interval_of(hashes: np.ndarray) -> np.ndarray:
    return (hashes >> np.uint64(48)).astype(np.int64)


def _is_below(values: np.ndarray, bound: int) -> np.ndarray:
    """Return which uint64 hashes are below `bound`, which may be 2**64."""
    return np.ones(len(values), dtype=bool) if bound >= HASH_LIMIT else values < np.uint64(bound)


def divide_into_shards(
    rows_by_part: Iterable[DocumentRows], parts: Sequence[Documents], size: int
) -> Iterator[list[DocumentRows]]:
    """Divide the consecutive documents of a corpus into shards of about `size` bytes of text. Shard boundaries are
    document boundaries."""
    total, stretch = 0, -1
    shard: list[DocumentRows] = []
    for number, rows in rows_by_part:
        sizes = parts[number].sizes[rows]
        stretches = (total + np.cumsum(sizes) - sizes) // size
        total += int(sizes.sum())
        for piece in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(stretches)) + 1):
            if shard and stretches[piece[0]] != stretch:
                yield shard
                shard = []
            stretch = int(stretches[piece[0]])
            shard.append((number, rows[piece]))
    if shard:
        yield shard
