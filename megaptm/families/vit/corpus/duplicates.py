"""Detect repeated images: the same file, or the same appearance after scaling, recompression or a brightness change."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

SIDE = 8
"""Number of brightness comparisons per row, and of rows, in an image's sketch: 64 bits."""
MAX_DIFFERENT_BITS = 3
"""Maximum number of different bits between sketches of images with the same appearance."""
BANDS = 4
"""Number of parts of an image's sketch. Two sketches that differ in at most `MAX_DIFFERENT_BITS` bits agree on at least
one part."""
BITS = 64 // BANDS


def file_sketch(content: bytes) -> int:
    """Return a 64-bit hash of an image file's bytes."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little", signed=True)


def appearance_sketch(picture: Image) -> int:
    """Return a 64-bit sketch of an image's appearance: whether each of 8 x 8 areas is brighter than the one before
    (difference hash of N. Krawetz, "Kind of Like That", 2013)."""
    from PIL.Image import Resampling

    grey = np.asarray(picture.convert("L").resize((SIDE + 1, SIDE), Resampling.BOX), dtype=np.int16)
    bits = np.packbits(grey[:, 1:] > grey[:, :-1])
    return int.from_bytes(bits.tobytes(), "little", signed=True)


def find_repeated(sketches: Iterable[int], *, near: bool) -> Iterator[bool]:
    """Find repeated images: yield for each sketch whether an earlier kept one is equal. With `near`, whether it differs
    in at most `MAX_DIFFERENT_BITS` bits."""
    known: set[int] = set()
    buckets: list[dict[int, list[int]]] = [{} for _ in range(BANDS)]
    for signed in sketches:
        sketch = signed & (1 << 64) - 1
        is_repeated = sketch in known
        bands = [sketch >> BITS * band & (1 << BITS) - 1 for band in range(BANDS)] if near else []
        if not is_repeated:
            is_repeated = any(
                (other ^ sketch).bit_count() <= MAX_DIFFERENT_BITS
                for bucket, band in zip(buckets, bands, strict=False)
                for other in bucket.get(band, ())
            )
        yield is_repeated
        if not is_repeated:
            known.add(sketch)
            for bucket, band in zip(buckets, bands, strict=False):
                bucket.setdefault(band, []).append(sketch)
