"""The memory of a job depends on the number of its hashes, not on the corpus."""

import tracemalloc

import numpy as np
import numpy.ma  # numpy loads it on first use, which is not the job's memory
import pytest

from data_pipeline.deduplicate import Deduplicate, NearDuplicateOptions
from data_pipeline.deduplicate.buckets import PartListing
from data_pipeline.deduplicate.exact import find_equal_entries
from data_pipeline.deduplicate.near import find_near_duplicates
from data_pipeline.deduplicate.sketch import ROW_BITS
from data_pipeline.deduplicate.tables import save_table
from tests.data_pipeline.deduplicate.corpora import Written

ENTRIES, ROWS, NEAR = 50_000, 2_000, NearDuplicateOptions()


def part(folder, number):
    """Sketches of documents without duplicates."""
    rng, stem = np.random.default_rng(number), str(folder / f"part-{number}")
    numbers = rng.integers(0, 1 << 64, (3, ROWS), np.uint64)
    numbers[0].sort()
    numbers[2] = np.arange(ROWS)
    save_table(f"{stem}.digests.npy", numbers)
    keys = rng.integers(0, 1 << 64 - ROW_BITS, (ROWS, NEAR.bands), np.uint64) << np.uint64(ROW_BITS)
    keys |= numbers[2][:, None]
    save_table(f"{stem}.bands.npy", np.sort(keys, axis=None))
    # For those that collide by chance.
    save_table(f"{stem}.signatures.npy", rng.integers(0, 1 << 32, (ROWS, NEAR.hashes), np.uint32))
    return Written(stem, ROWS)


def peaks(job_peaks):
    def run(name, function, jobs):
        results = []
        for job in jobs:
            tracemalloc.start()
            results.append(function(job))
            job_peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        return results

    return run


@pytest.mark.parametrize("parts", [10, 40])
def test_job_memory_is_bounded_by_hashes(tmp_path, monkeypatch, parts):
    monkeypatch.setattr("data_pipeline.deduplicate.buckets.ENTRIES_PER_JOB", ENTRIES)
    written, job_peaks = [part(tmp_path, number) for number in range(parts)], []
    listing = PartListing.write(str(tmp_path), written, Deduplicate(near=NEAR))
    find_near_duplicates(listing, NEAR, None, peaks(job_peaks))
    find_equal_entries(listing, "digests", parts * ROWS, peaks(job_peaks))
    assert len(job_peaks) >= parts * ROWS * NEAR.bands / ENTRIES
    # And the memory of a few signatures, of those that collide by chance.
    assert max(job_peaks) < 44 * ENTRIES + (1 << 18)
