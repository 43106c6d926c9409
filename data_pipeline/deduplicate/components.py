"""What is connected by pairs: each row knows the lowest row that it is connected to."""

from __future__ import annotations

import numpy as np


class Components:
    """Union-find by numpy, many pairs at a time. It takes 4 bytes a row (8 from 2**32 rows on)."""

    def __init__(self, rows: int):
        self._lower = np.arange(rows, dtype=np.uint32 if rows <= 1 << 32 else np.int64)
        """A row of the same component, lower unless it is the lowest itself."""

    def join(self, left: np.ndarray, right: np.ndarray) -> None:
        """Connect `left[i]` with `right[i]`."""
        while len(left):
            left, right = self._lowest(left), self._lowest(right)
            apart = left != right
            left, right = left[apart], right[apart]
            # Of several that would go below the same root the lowest does; the others are tried again.
            np.minimum.at(self._lower, np.maximum(left, right), np.minimum(left, right))

    def apart(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """bool [n]: `left[i]` is not connected with `right[i]`."""
        return self._lowest(left) != self._lowest(right)

    def lowest(self) -> np.ndarray:
        """[rows]: the lowest row of the component of each."""
        return self._lowest(np.arange(len(self._lower), dtype=self._lower.dtype))

    def connected(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows that are not the lowest of their component, and the lowest of each."""
        rows = np.flatnonzero(self._lower != np.arange(len(self._lower), dtype=self._lower.dtype))
        return rows, self._lowest(rows)

    def _lowest(self, rows: np.ndarray) -> np.ndarray:
        lowest = self._lower[rows]
        while not np.array_equal(lower := self._lower[lowest], lowest):
            lowest = lower
        # The next search is short.
        self._lower[rows] = lowest
        return lowest
