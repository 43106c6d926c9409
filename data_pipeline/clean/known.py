"""A set of hashes that is asked about by the million."""

from __future__ import annotations

import numpy as np

PLACES_A_HASH = 16
MOST_PLACES_BITS = 26
"""64 MiB."""


class Known:
    """Says where in an array known hashes stand.

    A table looked into by the lowest bits sends away all but one in sixteen of those that are not known; the rest are
    searched for among the sorted ones.
    """

    def __init__(self, hashes: np.ndarray) -> None:
        self._hashes = np.unique(hashes)
        bits = (PLACES_A_HASH * len(self._hashes)).bit_length()
        self._mask = np.uint64((1 << min(bits, MOST_PLACES_BITS)) - 1)
        self._maybe = np.zeros(int(self._mask) + 1, bool)
        self._maybe[self._hashes & self._mask] = True

    def places(self, hashes: np.ndarray) -> np.ndarray:
        """int64: the places in `hashes` (uint64) of those that are known, rising."""
        maybe = np.flatnonzero(self._maybe[hashes & self._mask])
        if not len(maybe):
            return maybe
        at = np.minimum(np.searchsorted(self._hashes, hashes[maybe]), len(self._hashes) - 1)
        return maybe[self._hashes[at] == hashes[maybe]]
