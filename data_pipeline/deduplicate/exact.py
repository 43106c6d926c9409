"""Equal documents, and equal paragraphs: the first of each stays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from data_pipeline.deduplicate.buckets import PartListing, Run, buckets, within
from data_pipeline.deduplicate.tables import load, save

DUPLICATE = "duplicate"
"""Why a document is left out that is equal to an earlier one."""


@dataclass(frozen=True)
class EqualJob:
    """Find what is equal in a range of digests."""

    listing: PartListing
    table: str
    """`digests` of documents, or `paragraphs`."""
    bucket: int
    of: int

    @property
    def path(self) -> str:
        """Result, int64 [2, n]: the numbers of all but the first of equals, rising; and the number of that first."""
        return self.listing.name(f"{self.table}-{self.bucket}-of-{self.of}.npy")


def find_equal(job: EqualJob) -> int:
    """Write `job.path`; returns how many there are."""
    tables = [np.empty((3, 0), np.uint64)]
    begin = 0
    for stem in job.listing.stems:
        table = load(f"{stem}.{job.table}.npy")
        entries = np.array(table[:, within(table[0], job.bucket, job.of)])
        entries[2] += np.uint64(begin)
        tables.append(entries)
        begin += table.shape[1]
    first, second, numbers = np.concatenate(tables, axis=1)
    # Parts came in order and the sort keeps it, so the first of equals is the lowest.
    order = np.lexsort((second, first))
    first, second, numbers = first[order], second[order], numbers[order].astype(np.int64)
    again = np.zeros(len(order), bool)
    again[1:] = (first[1:] == first[:-1]) & (second[1:] == second[:-1])
    firsts = numbers[np.flatnonzero(~again)[np.cumsum(~again) - 1]]
    found = np.stack([numbers[again], firsts[again]])
    save(job.path, found[:, np.argsort(found[0])])
    return found.shape[1]


def equal(listing: PartListing, table: str, count: int, run: Run) -> list[str]:
    """Files of what is equal among the `count` entries of all parts, as `EqualJob.path` says; in each other numbers."""
    of = buckets(2 * count)  # an entry takes twice the memory that one of a band takes
    jobs = [EqualJob(listing, table, bucket, of) for bucket in range(of)]
    run({"digests": "equal documents", "paragraphs": "equal paragraphs"}[table], find_equal, jobs)
    return [job.path for job in jobs]


def between(paths: Sequence[str], begin: int, end: int) -> Iterator[np.ndarray]:
    """Of each file the columns [2, n] whose number is from `begin` to below `end`."""
    for path in paths:
        found = load(path)
        yield np.array(found[:, slice(*np.searchsorted(found[0], [begin, end]))])
