"""Exact duplicates of documents and paragraphs. The first is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from data_pipeline.deduplicate.buckets import PartListing, Run, bucket_slice, num_buckets
from data_pipeline.deduplicate.tables import load_table, save_table

DUPLICATE = "duplicate"
"""Drop reason of exact duplicates."""


@dataclass(frozen=True)
class EqualJob:
    """Job that finds documents with equal digests, in a range of digests."""

    listing: PartListing
    table: str
    """Table of digests: `digests` (of documents) or `paragraphs`."""
    bucket: int
    of: int

    @property
    def path(self) -> str:
        """Path of the exact duplicates, int64 [2, n]: their ascending indexes, and the index of the first occurrence of
        each."""
        return self.listing.name(f"{self.table}-{self.bucket}-of-{self.of}.npy")


def _find_equal(job: EqualJob) -> int:
    """Find exact duplicates in a range of digests, and write `job.path`; return their number."""
    tables = [np.empty((3, 0), np.uint64)]
    begin = 0
    for stem in job.listing.stems:
        table = load_table(f"{stem}.{job.table}.npy")
        entries = np.array(table[:, bucket_slice(table[0], job.bucket, job.of)])
        entries[2] += np.uint64(begin)
        tables.append(entries)
        begin += table.shape[1]
    first, second, numbers = np.concatenate(tables, axis=1)
    # Parts are read in order and the sort is stable, so the first of equal entries has the lowest index.
    order = np.lexsort((second, first))
    first, second, numbers = first[order], second[order], numbers[order].astype(np.int64)
    again = np.zeros(len(order), bool)
    again[1:] = (first[1:] == first[:-1]) & (second[1:] == second[:-1])
    firsts = numbers[np.flatnonzero(~again)[np.cumsum(~again) - 1]]
    duplicates = np.stack([numbers[again], firsts[again]])
    save_table(job.path, duplicates[:, np.argsort(duplicates[0])])
    return duplicates.shape[1]


def find_equal_entries(listing: PartListing, table: str, count: int, run: Run) -> list[str]:
    """Find exact duplicates among the `count` documents or paragraphs of all parts; return the result files
    (`EqualJob.path`)."""
    of = num_buckets(2 * count)  # an entry takes twice the memory of a band entry
    jobs = [EqualJob(listing, table, bucket, of) for bucket in range(of)]
    run({"digests": "equal documents", "paragraphs": "equal paragraphs"}[table], _find_equal, jobs)
    return [job.path for job in jobs]


def entries_between(paths: Sequence[str], begin: int, end: int) -> Iterator[np.ndarray]:
    """Yield from each file of duplicates the columns [2, n] whose index is in [begin, end)."""
    for path in paths:
        duplicates = load_table(path)
        yield np.array(duplicates[:, slice(*np.searchsorted(duplicates[0], [begin, end]))])
