"""Attention patterns defined by tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch.distributed as dist

from megaptm.layers.custom_pattern import CustomPattern


def near_or_first(query: Any, key: Any) -> Any:
    """Each position attends to its neighbors and to the first two positions."""
    return (abs(query - key) < 2) | (key < 2)


def strided(query: Any, key: Any) -> Any:
    """Attend to earlier positions of the run of eight, and to the last of each run (arXiv:1904.10509, section 4.2)."""
    return (key <= query) & ((query // 8 == key // 8) | (key % 8 == 7))


def every_third(query: Any, key: Any) -> Any:
    return (query - key) % 3 == 0


def cross(blocks: int) -> np.ndarray:
    """Return the mask of blocks that attend to themselves and to the block mirrored at the middle."""
    itself = np.eye(blocks, dtype=bool)
    return itself | itself[::-1]


def of_rank(query: Any, key: Any) -> Any:
    """Attend within a window whose width is the process's rank: invalid, because ranks differ."""
    return abs(query - key) <= dist.get_rank()


NEAR_OR_FIRST = CustomPattern(near_or_first, block=2)
STRIDED = CustomPattern(strided, block=8)
CROSS = CustomPattern(every_third, cross, block=4)
LOOKED_UP = CustomPattern(lambda query, key: np.asarray(key <= query), block=2)
OF_RANK = CustomPattern(of_rank, cross, block=4)
TOO_LARGE_BLOCKS = CustomPattern(near_or_first, block=10**9)
