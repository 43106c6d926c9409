"""Connected components of pairs, identified by their lowest row."""

from __future__ import annotations

import numpy as np


class Components:
    """Union-find in numpy, for many pairs at a time. Memory: 4 bytes per row (8 from 2**32 rows on)."""

    def __init__(self, rows: int):
        self._lower = np.arange(rows, dtype=np.uint32 if rows <= 1 << 32 else np.int64)
        """A lower row of the same component, or the row itself if it is the lowest."""

    def join(self, first: np.ndarray, second: np.ndarray) -> None:
        """Join components of duplicates: connect row `first[i]` with row `second[i]`."""
        while len(first):
            first, second = self._find_lowest(first), self._find_lowest(second)
            separate = first != second
            first, second = first[separate], second[separate]
            # If several rows are attached to the same root, the lowest is stored and the others are retried.
            np.minimum.at(self._lower, np.maximum(first, second), np.minimum(first, second))

    def are_separate(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return whether rows `first[i]` and `second[i]` are in different components, bool [n]."""
        return self._find_lowest(first) != self._find_lowest(second)

    def lowest_rows(self) -> np.ndarray:
        """Return the lowest row of the component of duplicates that each row is in, [rows]."""
        return self._find_lowest(np.arange(len(self._lower), dtype=self._lower.dtype))

    def duplicate_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of duplicates that are not the lowest of their component, and the lowest row of each."""
        rows = np.flatnonzero(self._lower != np.arange(len(self._lower), dtype=self._lower.dtype))
        return rows, self._find_lowest(rows)

    def _find_lowest(self, rows: np.ndarray) -> np.ndarray:
        lowest = self._lower[rows]
        while not np.array_equal(lower := self._lower[lowest], lowest):
            lowest = lower
        # Path compression makes the next search short.
        self._lower[rows] = lowest
        return lowest
