"""Boxes: axis-aligned blocks of a tensor, by the offset and shape of each. Pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Box:
    """The elements `offset[d] <= index[d] < offset[d] + shape[d]` of a tensor. A scalar's box is `Box((), ())`."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def volume(self) -> int:
        return math.prod(self.shape)

    def moved(self, by: tuple[int, ...]) -> Box:
        """The same box with `by` added to its offset."""
        return Box(tuple(start + step for start, step in zip(self.offset, by, strict=True)), self.shape)

    def within(self, outer: Box) -> tuple[slice, ...]:
        """The slices that cut this box out of a tensor that holds `outer`."""
        return tuple(
            slice(start - base, start - base + size)
            for start, size, base in zip(self.offset, self.shape, outer.offset, strict=True)
        )

    def intersect(self, other: Box) -> Box | None:
        """What both hold, or None where that is nothing."""
        offset, shape = [], []
        for start, size, other_start, other_size in zip(
            self.offset, self.shape, other.offset, other.shape, strict=True
        ):
            low = max(start, other_start)
            high = min(start + size, other_start + other_size)
            if high <= low:
                return None
            offset.append(low)
            shape.append(high - low)
        return Box(tuple(offset), tuple(shape))

    def minus(self, hole: Box) -> Iterator[Box]:
        """What is left of this box without `hole`, which lies inside it, in at most two boxes a dimension."""
        offset, shape = list(self.offset), list(self.shape)
        for dim, (start, size) in enumerate(zip(self.offset, self.shape, strict=True)):
            low, high = hole.offset[dim], hole.offset[dim] + hole.shape[dim]
            for left, right in ((start, low), (high, start + size)):
                if left < right:
                    yield Box(
                        (*offset[:dim], left, *offset[dim + 1 :]), (*shape[:dim], right - left, *shape[dim + 1 :])
                    )
            offset[dim], shape[dim] = low, high - low


def span_boxes(shape: tuple[int, ...], start: int, stop: int) -> Iterator[Box]:
    """The flat range [start, stop) of a row-major block as boxes, in flat order; each is contiguous in the block.

    A range of a matrix is at most three: the end of a row, whole rows, the beginning of a row.
    """
    if start >= stop:
        return
    if not shape:
        yield Box((), ())
        return
    row = math.prod(shape[1:])
    first, last = -(-start // row), stop // row  # whole rows: first <= i < last
    if first > last:
        yield from _part_of_row(shape, last, start - last * row, stop - last * row)
        return
    if start < first * row:
        yield from _part_of_row(shape, first - 1, start - (first - 1) * row, row)
    if first < last:
        yield Box((first, *[0] * (len(shape) - 1)), (last - first, *shape[1:]))
    if last * row < stop:
        yield from _part_of_row(shape, last, 0, stop - last * row)


def _part_of_row(shape: tuple[int, ...], row: int, start: int, stop: int) -> Iterator[Box]:
    for box in span_boxes(shape[1:], start, stop):
        yield Box((row, *box.offset), (1, *box.shape))
