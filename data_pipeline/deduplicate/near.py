"""Near duplicates: signatures that share a band key and agree on enough components. If their agreement is inconclusive,
the texts are compared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_pipeline.deduplicate.bands import BandJob, compare_bands
from data_pipeline.deduplicate.buckets import PartListing, Run, num_buckets
from data_pipeline.deduplicate.components import Components
from data_pipeline.deduplicate.exact import entries_between
from data_pipeline.deduplicate.options import NearDuplicateOptions
from data_pipeline.deduplicate.tables import load_table, save_table
from data_pipeline.deduplicate.texts import TextComparer

PAIRS_PER_JOB = 1 << 15
"""Number of doubtful pairs of documents per job, which take some seconds."""
AT_ONCE = 1 << 8
"""Number of pairs of documents whose texts are read together."""


@dataclass(frozen=True)
class CompareJob:
    """Job that compares the texts of doubtful pairs whose higher row is in a range."""

    listing: PartListing
    near: NearDuplicateOptions
    doubtful: tuple[str, ...]
    """Files of doubtful pairs of documents, see `BandJob.doubtful`."""
    connected: str
    """File with the component of each document, [rows]: the lowest row that is known to belong to it. Pairs within a
    component are not read."""
    bucket: int
    of: int

    @property
    def path(self) -> str:
        """Path of the near duplicates, int64 [2, n]: rows, and a lower row of the same component."""
        return self.listing.name(f"read-{self.bucket}-of-{self.of}.npy")


def _compare_texts(job: CompareJob) -> int:
    """Compare the texts of doubtful pairs of documents, and write `job.path`; return the number of pairs that were
    read."""
    connected = load_table(job.connected)
    begin, end = (bucket * len(connected) // job.of for bucket in (job.bucket, job.bucket + 1))
    pairs = np.unique(np.concatenate(list(entries_between(job.doubtful, begin, end)), axis=1), axis=1)
    pairs = pairs[:, connected[pairs[0]] != connected[pairs[1]]]
    rows, numbers = np.unique(pairs, return_inverse=True)
    numbers = numbers.reshape(pairs.shape)
    components, texts, read = Components(len(rows)), TextComparer(job.listing, job.near), 0
    for start in range(0, pairs.shape[1], AT_ONCE):
        block = numbers[:, start : start + AT_ONCE]
        block = block[:, components.are_separate(*block)]
        components.join(*block[:, texts.are_similar(*rows[block])])
        read += block.shape[1]
    save_table(job.path, np.stack([rows[numbers] for numbers in components.duplicate_rows()]))
    return read


def find_near_duplicates(
    listing: PartListing, options: NearDuplicateOptions, dropped: str | None, run: Run
) -> Components:
    """Find near duplicates among all documents except those marked in `dropped`, a file of bool [rows]."""
    components, rows = Components(int(listing.first_rows[-1])), int(listing.first_rows[-1])
    of = num_buckets(rows * options.bands)
    jobs = [BandJob(listing, options, bucket, of, dropped) for bucket in range(of)]
    doubtful = sum(run("near duplicates", compare_bands, jobs))
    for job in jobs:
        components.join(*load_table(job.certain))
    if doubtful:
        connected = listing.name("connected.npy")
        save_table(connected, components.lowest_rows())
        of, files = -(-doubtful // PAIRS_PER_JOB), tuple(job.doubtful for job in jobs)
        readers = [CompareJob(listing, options, files, connected, bucket, of) for bucket in range(of)]
        run("doubtful pairs", _compare_texts, readers)
        for reader in readers:
            components.join(*load_table(reader.path))
    return components
