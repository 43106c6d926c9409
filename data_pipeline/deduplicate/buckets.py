"""Read the tables of all parts by ranges of hashes. Equal items have equal hashes, so one job sees all of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.deduplicate.files import PartFile
from data_pipeline.deduplicate.options import Deduplicate
from megaptm.storage import write_atomically

Run = Callable[[str, Callable[[Any], Any], Sequence[Any]], list[Any]]
"""Type of the function `run(name, function, jobs)`, which returns the results of `function(job)` in the order of the
jobs, from any executor."""

ENTRIES_PER_JOB = 1 << 22
"""Average number of band keys per job, at 40 bytes each: 170 MB. Hashes are uniform, so no job has many more, unless a
single key occurs millions of times."""


@dataclass(frozen=True)
class PartListing:
    """List of all parts of a corpus, stored in a file that jobs refer to. Rows are numbered across parts."""

    path: str
    """Path of the list of parts. The file name is a hash of its content."""

    @staticmethod
    def write(folder: str, parts: Sequence[PartFile], options: Deduplicate) -> PartListing:
        content = json.dumps([asdict(options), [(part.stem, part.documents) for part in parts]]).encode()
        path = Path(folder, f"{hashlib.blake2b(content, digest_size=16).hexdigest()}.parts.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
        return PartListing(str(path))

    def name(self, suffix: str) -> str:
        """Return the path of a file for deduplication results about these parts."""
        return self.path.removesuffix("parts.json") + suffix

    @property
    def stems(self) -> list[str]:
        return [stem for stem, _ in _read_entries(self.path)]

    @property
    def first_rows(self) -> np.ndarray:
        """First row of each part, and the total number of rows, int64 [parts + 1]."""
        return np.cumsum([0, *(documents for _, documents in _read_entries(self.path))])


@lru_cache(maxsize=1)
def _read_entries(path: str) -> list[tuple[str, int]]:
    with open(path, "rb") as file:
        return json.load(file)[1]


def num_buckets(entries: int) -> int:
    """Return the number of ranges into which the `entries` hashes of a table are divided, one per job."""
    return max(-(-entries // ENTRIES_PER_JOB), 1)


def bucket_slice(keys: np.ndarray, bucket: int, of: int) -> slice:
    """Return the slice of a deduplication table's sorted 64-bit `keys` in range `bucket` of `of` equal ranges."""
    first, last = (bucket << 64) // of, ((bucket + 1) << 64) // of - 1
    begin = np.searchsorted(keys, np.uint64(first), side="left")
    return slice(int(begin), int(np.searchsorted(keys, np.uint64(last), side="right")))
