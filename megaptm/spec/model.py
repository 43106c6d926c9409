"""ModelSpec: a family at a size with a vocabulary."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isqrt
from typing import NamedTuple

from megaptm.spec.family import Family, Reading
from megaptm.spec.size import Size

# Tables are padded to a multiple of this, whatever the layout, so that a checkpoint has the same shapes on any number
# of ranks. The rows above the vocabulary are zero, can never be asked for, and are left out of counts and exports.
VOCABULARY_MULTIPLE = 128

MOST_OF_PIXELS = 1e6
"""No mean of pixels is farther from zero, no spread larger; and none is smaller than one over this."""


class PixelStatistics(NamedTuple):
    """Of red, green and blue from 0 to 1, by which pixels become the numbers that a model reads."""

    mean: tuple[float, float, float]
    """What is subtracted."""
    std: tuple[float, float, float]
    """What they are divided by then."""


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A family at a size with a vocabulary: everything needed to build or count one model."""

    family: Family
    size: Size
    vocabulary: int
    context: int
    dropout: float
    own_pixels: PixelStatistics | None = None
    """Where images are read by other statistics than the family's."""

    @property
    def pixels(self) -> PixelStatistics:
        """By which images are read."""
        return self.own_pixels or PixelStatistics(self.family.pixel_mean, self.family.pixel_std)

    def with_pixels(self, pixels: PixelStatistics) -> ModelSpec:
        """The same model, which reads images by these."""
        return replace(self, own_pixels=None if pixels == replace(self, own_pixels=None).pixels else pixels)

    @property
    def padded_vocabulary(self) -> int:
        """Rows of the token table; see `VOCABULARY_MULTIPLE`."""
        return -(-self.vocabulary // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE

    @property
    def name(self) -> str:
        return self.family.name

    def size_of(self, stack: str) -> Size:
        return self.size.stacks.get(stack, self.size)

    @property
    def remembers(self) -> bool:
        """Whether layers attend to what they said in earlier steps, so that rows must go on from step to step."""
        return any(self.size_of(stack).remembered for stack in self.family.stacks)

    def readings(self, head: str) -> tuple[Reading, ...]:
        """What a head reads."""
        read = self.family.reads.get(head, next(reversed(self.family.stacks)))
        return tuple(map(Reading.parse, (read,) if isinstance(read, str) else read))

    @property
    def layers(self) -> int:
        """Of all stacks."""
        return sum(self.size_of(stack).layers for stack in self.family.stacks)

    @property
    def width(self) -> int:
        """Of the stream between pipeline stages: the widest stack's, to which others are filled up."""
        return max(self.size_of(stack).width for stack in self.family.stacks)

    @property
    def positions(self) -> int:
        """Rows of the first stack's table of learned positions."""
        return self.positions_of(next(iter(self.family.stacks)))

    def context_of(self, stack: str) -> int:
        """Longest sequence of a stack with a learned position."""
        own = self.size.stacks[stack].context if stack in self.size.stacks else None
        return self.context if own is None else own

    def positions_of(self, stack: str) -> int:
        """Rows of a stack's table of learned positions."""
        return self.context_of(stack) + self.family.first_position

    def table_width(self, stack: str) -> int:
        """Of the tables at the input of a stack: one for all, but where some read images and others texts."""
        own = self.family.reads_images and self.family.has_tokens
        return self.size_of(stack).table_width if own else self.size.table_width

    @property
    def token_width(self) -> int:
        """Of the token table."""
        of_text = (name for name in self.family.stacks if not self.family.reads_patches(name))
        return self.table_width(next(of_text, next(iter(self.family.stacks))))

    def output_width(self, stack: str) -> int:
        """Of what a stack gives."""
        return self.size_of(stack).width * self.family.stacks[stack].streams

    @property
    def axial(self) -> tuple[int, int]:
        """Rows and columns of the rectangle in which places lie."""
        if self.size.axial is not None:
            return self.size.axial
        rows = next(rows for rows in range(isqrt(self.context), 0, -1) if self.context % rows == 0)
        return rows, self.context // rows

    @property
    def axial_widths(self) -> tuple[int, int]:
        """Features that tell rows, and those that tell columns: one to three, as in the released models."""
        rows = self.size.table_width // 4
        return rows, self.size.table_width - rows

    @property
    def masks_patches(self) -> bool:
        """Whether it is asked about patches that it is not shown, and so has a vector for such."""
        return self.family.reads_images and "masked-patch" in self.family.heads

    @property
    def grid(self) -> int:
        """Patches of a side of an image: one place of the context is the image's."""
        return isqrt(self.context - 1)

    @property
    def longest(self) -> int | None:
        """Tokens of the longest text, where places are rows of a table; None where any length has places."""
        blocks = self.family.stacks.values()
        tables = any(block.position in ("learned", "axial") or block.last_layer == "mask-decoder" for block in blocks)
        of_text = (name for name in self.family.stacks if not self.family.reads_patches(name))
        return self.context_of(next(of_text, next(iter(self.family.stacks)))) if tables else None


def published(family: Family, size: str) -> ModelSpec:
    """The model exactly as published."""
    return ModelSpec(
        family=family,
        size=family.sizes[size],
        vocabulary=family.vocabulary,
        context=family.sizes[size].context or family.context,
        dropout=family.dropout,
    )
