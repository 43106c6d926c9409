"""Signatures that meet in a band, and on how many numbers they agree.

Of the documents that share a band's key each is compared with WINDOW others; mostly these are all. Where many meet, as
pages of one template do, comparing all would take quadratic time, and comparing each with the first of them would miss
the two that are really alike. So they are put in the order of their signatures, beginning with the numbers that differ
most among them, and compared with those before: signatures that agree on most numbers stand close to each other in most
of the bands that they share. Who is compared depends on the documents alone, not on their rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from data_pipeline.deduplicate.buckets import PartListing, within
from data_pipeline.deduplicate.components import Components
from data_pipeline.deduplicate.options import Near
from data_pipeline.deduplicate.sketch import PLACE_BITS
from data_pipeline.deduplicate.tables import load, save

WINDOW = 8
CONSIDERED, DECIDING = 32, 8
"""Numbers of the signatures among which the ones to order by are chosen; other ones for each key, so that chance does
not part the same two documents everywhere. And how many these are."""
BLOCK = 1 << 17
"""Entries whose signatures are in memory together; more documents than that in one band are compared in pieces."""
COMPARED = 1 << 13
"""Pairs of signatures compared at a time."""
NO_PAIRS = np.empty((2, 0), np.int64)


@dataclass(frozen=True)
class BandJob:
    """Compare the signatures that meet in a range of band keys."""

    listing: PartListing
    near: Near
    bucket: int
    of: int
    dropped: str | None
    """File of bool [rows]: those to pass over, since they are equal to others."""

    @property
    def certain(self) -> str:
        """Result, int64 [2, n]: rows, and a lower row that each is connected to by near duplicates."""
        return self.listing.name(f"certain-{self.bucket}-of-{self.of}.npy")

    @property
    def doubtful(self) -> str:
        """Result, int64 [2, n]: the higher and the lower row of pairs whose texts must tell, sorted."""
        return self.listing.name(f"doubtful-{self.bucket}-of-{self.of}.npy")


def compare_bands(job: BandJob) -> int:
    """Write both results; returns the number of doubtful pairs."""
    keys, rows = _meeting(*_entries(job))
    certain, doubtful = [NO_PAIRS], [NO_PAIRS]
    for block in _blocks(keys):
        sure, unsure = _compared(keys[block], rows[block], job)
        certain.append(sure)
        doubtful.append(unsure)
    save(job.certain, np.concatenate(certain, axis=1))
    pairs = np.unique(np.concatenate(doubtful, axis=1), axis=1)
    save(job.doubtful, pairs)
    return pairs.shape[1]


def _entries(job: BandJob) -> tuple[np.ndarray, np.ndarray]:
    """uint64 [n] keys and int64 [n] rows of the job's range, part after part."""
    begins = job.listing.begins
    dropped = load(job.dropped) if job.dropped else None
    keys, rows = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for stem, begin, end in zip(job.listing.stems, begins, begins[1:], strict=False):
        table = load(f"{stem}.bands.npy")
        entries = np.array(table[within(table, job.bucket, job.of)])
        places = (entries & np.uint64((1 << PLACE_BITS) - 1)).astype(np.int64)
        entries >>= np.uint64(PLACE_BITS)
        if dropped is not None:
            stay = ~dropped[begin:end][places]
            entries, places = entries[stay], places[stay]
        keys.append(entries)
        rows.append(places + begin)
    return np.concatenate(keys), np.concatenate(rows)


def _meeting(keys: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Those whose key others have too, sorted by key."""
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    same = np.zeros(len(keys) + 1, bool)
    same[1:-1] = keys[1:] == keys[:-1]
    meet = same[1:] | same[:-1]
    return keys[meet], rows[order[meet]]


def _blocks(keys: np.ndarray) -> Iterator[slice]:
    """BLOCK entries or fewer, keys whole where possible."""
    begin = 0
    while begin < len(keys):
        end = min(begin + BLOCK, len(keys))
        if end < len(keys):
            whole = int(np.searchsorted(keys, keys[end], side="left"))
            end = whole if whole > begin else end
        yield slice(begin, end)
        begin = end


def _compared(keys: np.ndarray, rows: np.ndarray, job: BandJob) -> tuple[np.ndarray, np.ndarray]:
    """What `job.certain` and `job.doubtful` say of some entries."""
    unique, row_of = np.unique(rows, return_inverse=True)
    signatures = gather(job.listing, unique, job.near.hashes)
    for crowd in _crowds(keys):
        row_of[crowd] = row_of[crowd][_order(signatures[row_of[crowd]], int(keys[crowd.start]))]
    components, doubtful = Components(len(unique)), NO_PAIRS
    for shift in range(1, WINDOW + 1):
        places = np.flatnonzero(keys[shift:] == keys[:-shift])
        pairs = np.stack([row_of[places], row_of[places + shift]])
        agreeing = _agreeing(signatures, pairs)
        components.join(*pairs[:, agreeing >= job.near.certain])
        unsure = pairs[:, (agreeing >= job.near.possible) & (agreeing < job.near.certain)]
        doubtful = np.unique(np.concatenate([doubtful, -np.sort(-unsure, axis=0)], axis=1), axis=1)
    doubtful = doubtful[:, components.apart(*doubtful)]
    return np.stack([unique[rows] for rows in components.connected()]), unique[doubtful]


def _crowds(keys: np.ndarray) -> Iterator[slice]:
    """Entries of keys that more have than a window and one."""
    begins = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1], [True]]))
    for run in np.flatnonzero(np.diff(begins) > WINDOW + 1):
        yield slice(int(begins[run]), int(begins[run + 1]))


def _order(signatures: np.ndarray, key: int) -> np.ndarray:
    """int64 [n]: by the numbers that take most values here; what is still equal, by all numbers."""
    width = signatures.shape[1]
    numbers = signatures[:, (key + np.arange(CONSIDERED)) % width]
    values = np.sort(numbers, axis=0)
    varied = np.count_nonzero(values[1:] != values[:-1], axis=0)
    deciding = np.argsort(varied, kind="stable")[-DECIDING:]
    odd = np.arange(1, width, 2, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return np.lexsort((signatures.view("<u8") @ odd, *numbers[:, deciding].T))


def _agreeing(signatures: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """int64 [pairs]: numbers that two signatures share."""
    agreeing = np.empty(pairs.shape[1], np.int64)
    for begin in range(0, len(agreeing), COMPARED):
        some = slice(begin, begin + COMPARED)
        left, right = pairs[:, some]
        agreeing[some] = np.count_nonzero(signatures[left] == signatures[right], axis=1)
    return agreeing


def gather(listing: PartListing, rows: np.ndarray, hashes: int) -> np.ndarray:
    """uint32 [rows, hashes]: the signatures of some rows, rising. Files are open one at a time."""
    stems, begins = listing.stems, listing.begins
    cuts = np.searchsorted(rows, begins)
    found = np.empty((len(rows), hashes), np.uint32)
    for part in np.flatnonzero(np.diff(cuts)):
        these = slice(cuts[part], cuts[part + 1])
        found[these] = load(f"{stems[part]}.signatures.npy")[rows[these] - begins[part]]
    return found
