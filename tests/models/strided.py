"""Patterns of a test's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch.distributed as dist

from megaptm.bricks.custom_pattern import CustomPattern


def near_or_first(query: Any, key: Any) -> Any:
    """A place sees its neighbors, and all see the first two."""
    return (abs(query - key) < 2) | (key < 2)


def strided(query: Any, key: Any) -> Any:
    """Of what is before it a place sees its own run of eight, and the last of each (arXiv:1904.10509, section 4.2)."""
    return (key <= query) & ((query // 8 == key // 8) | (key % 8 == 7))


def every_third(query: Any, key: Any) -> Any:
    return (query - key) % 3 == 0


def cross(blocks: int) -> np.ndarray:
    """Of blocks that see themselves, and those that lie as far from the other end."""
    itself = np.eye(blocks, dtype=bool)
    return itself | itself[::-1]


def of_rank(query: Any, key: Any) -> Any:
    """Another window on each process."""
    return abs(query - key) <= dist.get_rank()


NEAR_OR_FIRST = CustomPattern(near_or_first, block=2)
STRIDED = CustomPattern(strided, block=8)
CROSS = CustomPattern(every_third, cross, block=4)
LOOKED_UP = CustomPattern(lambda query, key: np.asarray(key <= query), block=2)
OF_RANK = CustomPattern(of_rank, cross, block=4)
SO_LARGE = CustomPattern(near_or_first, block=10**9)
