"""ModelSpec: family, size and vocabulary of a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isqrt
from typing import NamedTuple

from megaptm.spec.family import Family, Reading
from megaptm.spec.size import Size

# Tables are padded to a multiple of this on every layout, so that a checkpoint has the same shapes on any number of
# ranks. Rows above the vocabulary are zero, are never labels, and are left out of parameter counts and exports.
VOCABULARY_MULTIPLE = 128

MOST_OF_PIXELS = 1e6
"""Largest absolute mean and standard deviation of pixels; the smallest standard deviation is 1 over this."""


class PixelStatistics(NamedTuple):
    """Normalization of pixels: red, green and blue in [0, 1]."""

    mean: tuple[float, float, float]
    """Subtracted from pixels."""
    std: tuple[float, float, float]
    """Divisor of centered pixels."""


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Everything needed to build one model or to count its parameters."""

    family: Family
    size: Size
    vocabulary: int
    context: int
    dropout: float
    own_pixels: PixelStatistics | None = None
    """Pixel statistics that differ from the family's. None: the family's."""

    @property
    def pixels(self) -> PixelStatistics:
        """Pixel statistics of the model."""
        return self.own_pixels or PixelStatistics(self.family.pixel_mean, self.family.pixel_std)

    def with_pixels(self, pixels: PixelStatistics) -> ModelSpec:
        """Return the same model with other pixel statistics."""
        return replace(self, own_pixels=None if pixels == replace(self, own_pixels=None).pixels else pixels)

    @property
    def padded_vocabulary(self) -> int:
        """Number of rows of the token table; see `VOCABULARY_MULTIPLE`."""
        return -(-self.vocabulary // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE

    @property
    def name(self) -> str:
        return self.family.name

    def size_of(self, stack: str) -> Size:
        return self.size.stacks.get(stack, self.size)

    @property
    def has_recurrence_cache(self) -> bool:
        """Whether layers have a recurrence cache, so that sequences must continue from step to step."""
        return any(self.size_of(stack).cached_positions for stack in self.family.stacks)

    def readings(self, head: str) -> tuple[Reading, ...]:
        """Return the outputs that a head reads."""
        read = self.family.reads.get(head, next(reversed(self.family.stacks)))
        return tuple(map(Reading.parse, (read,) if isinstance(read, str) else read))

    @property
    def layers(self) -> int:
        """Number of layers of all stacks."""
        return sum(self.size_of(stack).layers for stack in self.family.stacks)

    @property
    def width(self) -> int:
        """Width of the tensor between pipeline stages: the widest stack's; others are padded to it."""
        return max(self.size_of(stack).width for stack in self.family.stacks)

    @property
    def positions(self) -> int:
        """Number of rows of the first stack's position table."""
        return self.positions_of(next(iter(self.family.stacks)))

    def context_of(self, stack: str) -> int:
        """Return the longest sequence of a stack with learned positions."""
        own = self.size.stacks[stack].context if stack in self.size.stacks else None
        return self.context if own is None else own

    def positions_of(self, stack: str) -> int:
        """Return the number of rows of a stack's position table."""
        return self.context_of(stack) + self.family.first_position

    def table_width(self, stack: str) -> int:
        """Return the width of a stack's embedding tables. Stacks share it, unless some read images and others text."""
        own = self.family.reads_images and self.family.has_tokens
        return self.size_of(stack).table_width if own else self.size.table_width

    @property
    def token_width(self) -> int:
        """Width of the token table."""
        of_text = (name for name in self.family.stacks if not self.family.reads_patches(name))
        return self.table_width(next(of_text, next(iter(self.family.stacks))))

    def output_width(self, stack: str) -> int:
        """Return the width of a stack's output."""
        return self.size_of(stack).width * self.family.stacks[stack].streams

    @property
    def axial(self) -> tuple[int, int]:
        """Rows and columns of the grid of axial positions."""
        if self.size.axial is not None:
            return self.size.axial
        rows = next(rows for rows in range(isqrt(self.context), 0, -1) if self.context % rows == 0)
        return rows, self.context // rows

    @property
    def axial_widths(self) -> tuple[int, int]:
        """Widths of the row and column embeddings: one to three, as in the released models."""
        rows = self.size.table_width // 4
        return rows, self.size.table_width - rows

    @property
    def masks_patches(self) -> bool:
        """Whether the model predicts masked patches, and so has a mask vector."""
        return self.family.reads_images and "masked-patch" in self.family.heads

    @property
    def grid(self) -> int:
        """Number of patches along a side of an image. One position of the context is the class token."""
        return isqrt(self.context - 1)

    @property
    def longest(self) -> int | None:
        """Length of the longest text in tokens for learned positions. None: unlimited."""
        blocks = self.family.stacks.values()
        tables = any(block.position in ("learned", "axial") or block != block.for_encoding for block in blocks)
        of_text = (name for name in self.family.stacks if not self.family.reads_patches(name))
        return self.context_of(next(of_text, next(iter(self.family.stacks)))) if tables else None


def published(family: Family, size: str) -> ModelSpec:
    """Return the model exactly as published."""
    return ModelSpec(
        family=family,
        size=family.sizes[size],
        vocabulary=family.vocabulary,
        context=family.sizes[size].context or family.context,
        dropout=family.dropout,
    )
