"""Find the documents that are dropped as duplicates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from data_pipeline.deduplicate.buckets import PartListing, Run
from data_pipeline.deduplicate.exact import DUPLICATE, find_equal_entries
from data_pipeline.deduplicate.files import PartFile, read_part
from data_pipeline.deduplicate.near import find_near_duplicates
from data_pipeline.deduplicate.options import Deduplicate
from data_pipeline.deduplicate.tables import load_table, save_table
from data_pipeline.document import EXAMPLES

REASONS = ("", DUPLICATE, "near duplicate")
STAYS, EQUAL, NEAR = range(3)


@dataclass(frozen=True)
class Duplicates:
    """Documents dropped as duplicates. Memory: 1 byte per document."""

    reasons: np.ndarray
    """Index in REASONS of the drop reason of each document, 0 for documents that are kept, uint8 [documents]; all parts
    concatenated."""
    first_rows: np.ndarray
    """First row of each part of the corpus, int64 [parts + 1]."""
    counts: dict[str, int]
    """Number of dropped documents by reason."""
    examples: dict[str, list[tuple[str, str]]]
    """Examples of duplicates by reason: source of the dropped document, source of the kept one."""
    clusters: np.ndarray | None = None
    """Number of documents that each retained document stands for, uint32 [documents]; None if they are not counted."""

    def is_retained(self, part: int) -> np.ndarray:
        """Return whether deduplication retains each document of a part, bool [documents of the part]."""
        return self.reasons[self.first_rows[part] : self.first_rows[part + 1]] == STAYS

    def cluster_sizes(self, part: int) -> np.ndarray | None:
        """Return the cluster size of each document of a part, uint32 [documents of the part]."""
        if self.clusters is None:
            return None
        return self.clusters[self.first_rows[part] : self.first_rows[part + 1]]


def find_duplicates(parts: Sequence[PartFile], options: Deduplicate, run: Run, folder: str) -> Duplicates:
    """Find exact and near duplicates among the documents of all parts. Files are written to `folder`.

    The first of several is kept, in the order of the parts, so list preferred sources first. Memory of this process:
    less than 24 bytes per document (twice that from 2**32 on), and the duplicates found by one job.
    """
    listing = PartListing.write(folder, parts, options.for_sketches)
    reasons = np.zeros(int(listing.first_rows[-1]), np.uint8)
    clusters = np.ones(len(reasons), np.uint32) if options.counts_duplicates else None
    examples = {}
    if options.documents:
        pairs = np.empty((2, 0), np.int64)
        for path in find_equal_entries(listing, "digests", len(reasons), run):
            duplicates = load_table(path)
            reasons[duplicates[0]] = EQUAL
            if clusters is not None:
                np.add.at(clusters, duplicates[1], np.uint32(1))
            pairs = _first_examples(np.concatenate([pairs, duplicates[:, :EXAMPLES]], axis=1))
        examples[REASONS[EQUAL]] = _sources_of_pairs(listing, pairs)
    if options.near:
        dropped = listing.name("equal.npy")
        save_table(dropped, reasons == EQUAL)
        rows, stay = find_near_duplicates(listing, options.near, dropped, run).duplicate_rows()
        reasons[rows] = NEAR
        if clusters is not None:  # each near duplicate stands for its equal documents, too
            np.add.at(clusters, stay, clusters[rows])
        examples[REASONS[NEAR]] = _sources_of_pairs(
            listing, np.stack([rows[:EXAMPLES], stay[:EXAMPLES]]).astype(np.int64)
        )
    numbers = np.bincount(reasons, minlength=len(REASONS))
    counts = {reason: int(number) for reason, number in zip(REASONS, numbers, strict=True) if reason and number}
    return Duplicates(
        reasons,
        listing.first_rows,
        counts,
        {reason: pairs_of_reason for reason, pairs_of_reason in examples.items() if pairs_of_reason},
        clusters,
    )


def _first_examples(pairs: np.ndarray) -> np.ndarray:
    return pairs[:, np.argsort(pairs[0], kind="stable")[:EXAMPLES]]


def _sources_of_pairs(listing: PartListing, pairs: np.ndarray) -> list[tuple[str, str]]:
    return [(_source_of_row(listing, row), _source_of_row(listing, stays)) for row, stays in pairs.T.tolist()]


def _source_of_row(listing: PartListing, row: int) -> str:
    part = int(np.searchsorted(listing.first_rows, row, side="right")) - 1
    (document,) = read_part(listing.stems[part], np.array([row - listing.first_rows[part]]))
    return document.source
