"""Compare the signatures that share a band key.

Each document is compared with WINDOW others that share the key, which is usually all of them. For frequent keys, such
as pages of one template, comparing all pairs would be quadratic, and comparing each with the first would miss the
similar ones. So their signatures are sorted, by the components that vary most among them first, and neighbors are
compared: signatures that agree on most components are close to each other in most of their shared bands. The pairs
depend only on the documents, not on their rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from data_pipeline.deduplicate.buckets import PartListing, bucket_slice
from data_pipeline.deduplicate.components import Components
from data_pipeline.deduplicate.options import NearDuplicateOptions
from data_pipeline.deduplicate.sketch import ROW_BITS
from data_pipeline.deduplicate.tables import load_table, save_table

WINDOW = 8
CONSIDERED, DECIDING = 32, 8
"""Numbers of signature components that are considered for the sort order, and that are used. Each band key considers
other components, so that the same two documents are not separated in all bands."""
BLOCK = 1 << 17
"""Maximum number of band entries whose signatures are in memory together. A band with more documents is compared in
blocks."""
PAIRS_AT_ONCE = 1 << 13
"""Number of pairs of signatures that are compared at a time."""
NO_PAIRS = np.empty((2, 0), np.int64)


@dataclass(frozen=True)
class BandJob:
    """Job to compare the signatures that share a key in a range of band keys."""

    listing: PartListing
    near: NearDuplicateOptions
    bucket: int
    of: int
    dropped: str | None
    """File of bool [rows]: documents that are exact duplicates, which the comparison of bands skips."""

    @property
    def certain(self) -> str:
        """Path of the certain near duplicates, int64 [2, n]: rows, and a lower row of the same component."""
        return self.listing.name(f"certain-{self.bucket}-of-{self.of}.npy")

    @property
    def doubtful(self) -> str:
        """Path of the doubtful pairs, int64 [2, n]: sorted pairs (higher row, lower row) whose texts must be
        compared."""
        return self.listing.name(f"doubtful-{self.bucket}-of-{self.of}.npy")


def compare_bands(job: BandJob) -> int:
    """Compare the signatures of a range of band keys, and write both results; return the number of doubtful pairs."""
    keys, rows = _shared_entries(*_entries_in_range(job))
    certain, doubtful = [NO_PAIRS], [NO_PAIRS]
    for block in _entry_blocks(keys):
        sure, unsure = _compare_block(keys[block], rows[block], job)
        certain.append(sure)
        doubtful.append(unsure)
    save_table(job.certain, np.concatenate(certain, axis=1))
    pairs = np.unique(np.concatenate(doubtful, axis=1), axis=1)
    save_table(job.doubtful, pairs)
    return pairs.shape[1]


def _entries_in_range(job: BandJob) -> tuple[np.ndarray, np.ndarray]:
    """Return the keys and rows of the job's range, uint64 [n] and int64 [n], concatenated over parts."""
    first_rows = job.listing.first_rows
    dropped = load_table(job.dropped) if job.dropped else None
    keys, rows = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for stem, begin, end in zip(job.listing.stems, first_rows, first_rows[1:], strict=False):
        table = load_table(f"{stem}.bands.npy")
        entries = np.array(table[bucket_slice(table, job.bucket, job.of)])
        rows_in_part = (entries & np.uint64((1 << ROW_BITS) - 1)).astype(np.int64)
        entries >>= np.uint64(ROW_BITS)
        if dropped is not None:
            stay = ~dropped[begin:end][rows_in_part]
            entries, rows_in_part = entries[stay], rows_in_part[stay]
        keys.append(entries)
        rows.append(rows_in_part + begin)
    return np.concatenate(keys), np.concatenate(rows)


def _shared_entries(keys: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the entries whose key occurs more than once, sorted by key."""
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    same = np.zeros(len(keys) + 1, bool)
    same[1:-1] = keys[1:] == keys[:-1]
    meet = same[1:] | same[:-1]
    return keys[meet], rows[order[meet]]


def _entry_blocks(keys: np.ndarray) -> Iterator[slice]:
    """Yield slices of at most BLOCK entries, without dividing a key if possible."""
    begin = 0
    while begin < len(keys):
        end = min(begin + BLOCK, len(keys))
        if end < len(keys):
            start_of_key = int(np.searchsorted(keys, keys[end], side="left"))
            end = start_of_key if start_of_key > begin else end
        yield slice(begin, end)
        begin = end


def _compare_block(keys: np.ndarray, rows: np.ndarray, job: BandJob) -> tuple[np.ndarray, np.ndarray]:
    """Return `job.certain` and `job.doubtful` for a block of entries."""
    unique, row_of = np.unique(rows, return_inverse=True)
    signatures = _gather_signatures(job.listing, unique, job.near.hashes)
    for crowd in _frequent_keys(keys):
        row_of[crowd] = row_of[crowd][_sort_order(signatures[row_of[crowd]], int(keys[crowd.start]))]
    components, doubtful = Components(len(unique)), NO_PAIRS
    for shift in range(1, WINDOW + 1):
        rows_in_part = np.flatnonzero(keys[shift:] == keys[:-shift])
        pairs = np.stack([row_of[rows_in_part], row_of[rows_in_part + shift]])
        agreeing = _count_agreeing(signatures, pairs)
        components.join(*pairs[:, agreeing >= job.near.min_certain])
        unsure = pairs[:, (agreeing >= job.near.min_possible) & (agreeing < job.near.min_certain)]
        doubtful = np.unique(np.concatenate([doubtful, -np.sort(-unsure, axis=0)], axis=1), axis=1)
    doubtful = doubtful[:, components.are_separate(*doubtful)]
    return np.stack([unique[rows] for rows in components.duplicate_rows()]), unique[doubtful]


def _frequent_keys(keys: np.ndarray) -> Iterator[slice]:
    """Yield the entries of each key with more than WINDOW + 1 entries."""
    first_rows = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1], [True]]))
    for run in np.flatnonzero(np.diff(first_rows) > WINDOW + 1):
        yield slice(int(first_rows[run]), int(first_rows[run + 1]))


def _sort_order(signatures: np.ndarray, key: int) -> np.ndarray:
    """Return the sort order of the entries by the components with most distinct values, then by all components, int64
    [n]."""
    width = signatures.shape[1]
    numbers = signatures[:, (key + np.arange(CONSIDERED)) % width]
    values = np.sort(numbers, axis=0)
    varied = np.count_nonzero(values[1:] != values[:-1], axis=0)
    deciding = np.argsort(varied, kind="stable")[-DECIDING:]
    odd = np.arange(1, width, 2, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return np.lexsort((signatures.view("<u8") @ odd, *numbers[:, deciding].T))


def _count_agreeing(signatures: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Return the number of equal components of the two signatures of each pair, int64 [pairs]."""
    agreeing = np.empty(pairs.shape[1], np.int64)
    for begin in range(0, len(agreeing), PAIRS_AT_ONCE):
        block = slice(begin, begin + PAIRS_AT_ONCE)
        first, second = pairs[:, block]
        agreeing[block] = np.count_nonzero(signatures[first] == signatures[second], axis=1)
    return agreeing


def _gather_signatures(listing: PartListing, rows: np.ndarray, hashes: int) -> np.ndarray:
    """Return the MinHash signatures of the documents in ascending rows, uint32 [rows, hashes]. Opens one file at a
    time."""
    stems, first_rows = listing.stems, listing.first_rows
    cuts = np.searchsorted(rows, first_rows)
    signatures = np.empty((len(rows), hashes), np.uint32)
    for part in np.flatnonzero(np.diff(cuts)):
        slots = slice(cuts[part], cuts[part + 1])
        signatures[slots] = load_table(f"{stems[part]}.signatures.npy")[rows[slots] - first_rows[part]]
    return signatures
