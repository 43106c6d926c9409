"""Boxes: axis-aligned blocks of a checkpoint tensor, given by offset and shape. Pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Box:
    """Axis-aligned block of a tensor: elements `offset[d] <= index[d] < offset[d] + shape[d]`. The box of a scalar is
    `Box((), ())`."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def volume(self) -> int:
        return math.prod(self.shape)

    def shifted(self, distance: tuple[int, ...]) -> Box:
        """Return the box with `distance` added to its offset."""
        return Box(tuple(start + step for start, step in zip(self.offset, distance, strict=True)), self.shape)

    def slices_in(self, outer: Box) -> tuple[slice, ...]:
        """Return the slices that select this box in an array that holds only the box `outer`."""
        return tuple(
            slice(start - base, start - base + size)
            for start, size, base in zip(self.offset, self.shape, outer.offset, strict=True)
        )

    def intersect(self, other: Box) -> Box | None:
        """Return the intersection of two boxes, or None if it is empty."""
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

    def subtract(self, hole: Box) -> Iterator[Box]:
        """Yield this box without the box `hole`, which must be inside it, as at most two boxes per dimension."""
        offset, shape = list(self.offset), list(self.shape)
        for dim, (start, size) in enumerate(zip(self.offset, self.shape, strict=True)):
            low, high = hole.offset[dim], hole.offset[dim] + hole.shape[dim]
            for first, stop in ((start, low), (high, start + size)):
                if first < stop:
                    yield Box(
                        (*offset[:dim], first, *offset[dim + 1 :]), (*shape[:dim], stop - first, *shape[dim + 1 :])
                    )
            offset[dim], shape[dim] = low, high - low


def span_boxes(shape: tuple[int, ...], start: int, stop: int) -> Iterator[Box]:
    """Yield the boxes that cover the flat range [start, stop) of a row-major block, in flat order. Each is contiguous
    in the block.

    A range of a matrix has at most three boxes: the end of a row, complete rows, the start of a row.
    """
    if start >= stop:
        return
    if not shape:
        yield Box((), ())
        return
    row = math.prod(shape[1:])
    first, last = -(-start // row), stop // row  # complete rows: first <= i < last
    if first > last:
        yield from _row_part_boxes(shape, last, start - last * row, stop - last * row)
        return
    if start < first * row:
        yield from _row_part_boxes(shape, first - 1, start - (first - 1) * row, row)
    if first < last:
        yield Box((first, *[0] * (len(shape) - 1)), (last - first, *shape[1:]))
    if last * row < stop:
        yield from _row_part_boxes(shape, last, 0, stop - last * row)


def _row_part_boxes(shape: tuple[int, ...], row: int, start: int, stop: int) -> Iterator[Box]:
    for box in span_boxes(shape[1:], start, stop):
        yield Box((row, *box.offset), (1, *box.shape))
