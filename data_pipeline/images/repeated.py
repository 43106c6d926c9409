"""Images that come again: the same file, or one that looks the same, scaled, recompressed or a little brighter."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

SIDE = 8
"""Comparisons in a row, and rows, of a sketch: 64 bits."""
FEW = 3
"""Bits in which sketches of images that look the same differ at most."""
BANDS = 4
"""Parts of a sketch: two that differ in `FEW` bits are the same in one at least."""
BITS = 64 // BANDS


def file_sketch(content: bytes) -> int:
    """64 bits of the bytes of a file."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little", signed=True)


def picture_sketch(picture: Image) -> int:
    """64 bits of what an image looks like: whether each of 8 x 8 places is brighter than the next (the difference hash
    of N. Krawetz, "Kind of Like That", 2013)."""
    from PIL.Image import Resampling

    grey = np.asarray(picture.convert("L").resize((SIDE + 1, SIDE), Resampling.BOX), dtype=np.int16)
    bits = np.packbits(grey[:, 1:] > grey[:, :-1])
    return int.from_bytes(bits.tobytes(), "little", signed=True)


def repeated(sketches: Iterable[int], *, near: bool) -> Iterator[bool]:
    """Of each sketch whether one that was kept before it is the same, or, `near`, differs in a few bits."""
    seen: set[int] = set()
    buckets: list[dict[int, list[int]]] = [{} for _ in range(BANDS)]
    for signed in sketches:
        sketch = signed & (1 << 64) - 1
        again = sketch in seen
        bands = [sketch >> BITS * band & (1 << BITS) - 1 for band in range(BANDS)] if near else []
        if not again:
            again = any(
                (other ^ sketch).bit_count() <= FEW
                for bucket, band in zip(buckets, bands, strict=False)
                for other in bucket.get(band, ())
            )
        yield again
        if not again:
            seen.add(sketch)
            for bucket, band in zip(buckets, bands, strict=False):
                bucket.setdefault(band, []).append(sketch)
