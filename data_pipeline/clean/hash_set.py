"""Set of hashes with fast lookup of millions of hashes."""

from __future__ import annotations

import numpy as np

SLOTS_PER_HASH = 16
MAX_TABLE_BITS = 26
"""Maximum bits of an index of the hash table, which limit the table to 64 MiB."""


class HashSet:
    """Lookup of known hashes in an array.

    A table indexed by the lowest bits rejects all but one in sixteen of the unknown hashes. The others are looked up by
    binary search.
    """

    def __init__(self, hashes: np.ndarray) -> None:
        self._hashes = np.unique(hashes)
        bits = (SLOTS_PER_HASH * len(self._hashes)).bit_length()
        self._mask = np.uint64((1 << min(bits, MAX_TABLE_BITS)) - 1)
        self._maybe = np.zeros(int(self._mask) + 1, bool)
        self._maybe[self._hashes & self._mask] = True

    def indexes_of(self, hashes: np.ndarray) -> np.ndarray:
        """Return the ascending indexes (int64) of the known hashes in `hashes` (uint64)."""
        maybe = np.flatnonzero(self._maybe[hashes & self._mask])
        if not len(maybe):
            return maybe
        at = np.minimum(np.searchsorted(self._hashes, hashes[maybe]), len(self._hashes) - 1)
        return maybe[self._hashes[at] == hashes[maybe]]
