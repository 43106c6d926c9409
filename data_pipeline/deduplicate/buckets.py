"""Tables of all parts, read a range of hashes at a time: what is equal has equal hashes, so it meets in one job."""

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
from megaptm.storage import write_whole

Run = Callable[[str, Callable[[Any], Any], Sequence[Any]], list[Any]]
"""`run(name, function, jobs)`: the results of `function(job)` in the order of the jobs, whoever makes them."""

ENTRIES = 1 << 22
"""Band keys a job reads, on average, of 40 bytes each: 170 MB. Hashes are uniform, so no job has many more, unless one
of them comes again millions of times."""


@dataclass(frozen=True)
class PartListing:
    """All parts of a corpus, written down once, for jobs to name. Rows are numbered part after part."""

    path: str
    """Its name is made of what it lists."""

    @staticmethod
    def write(folder: str, parts: Sequence[PartFile], options: Deduplicate) -> PartListing:
        content = json.dumps([asdict(options), [(part.stem, part.documents) for part in parts]]).encode()
        path = Path(folder, f"{hashlib.blake2b(content, digest_size=16).hexdigest()}.parts.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
        return PartListing(str(path))

    def name(self, suffix: str) -> str:
        """A file for what is found in these parts."""
        return self.path.removesuffix("parts.json") + suffix

    @property
    def stems(self) -> list[str]:
        return [stem for stem, _ in _listed(self.path)]

    @property
    def begins(self) -> np.ndarray:
        """int64 [parts + 1]: the row where each begins, and the number of all."""
        return np.cumsum([0, *(documents for _, documents in _listed(self.path))])


@lru_cache(maxsize=1)
def _listed(path: str) -> list[tuple[str, int]]:
    with open(path, "rb") as file:
        return json.load(file)[1]


def buckets(entries: int) -> int:
    """Into how many ranges so many hashes are dealt."""
    return max(-(-entries // ENTRIES), 1)


def within(keys: np.ndarray, bucket: int, of: int) -> slice:
    """The entries of sorted 64-bit `keys` in one of `of` equal ranges."""
    first, last = (bucket << 64) // of, ((bucket + 1) << 64) // of - 1
    begin = np.searchsorted(keys, np.uint64(first), side="left")
    return slice(int(begin), int(np.searchsorted(keys, np.uint64(last), side="right")))
