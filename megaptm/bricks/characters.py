"""Costs of character-based word embeddings (arXiv:1508.06615, as in arXiv:1802.05365): character vectors, convolutions
with max pooling, highway layers, and a projection to the hidden states."""

from __future__ import annotations

from collections.abc import Iterator

from megaptm.batch import MAX_WORD_LENGTH, NUM_CHARACTERS
from megaptm.bricks.brick import LinearShape
from megaptm.spec import ModelSpec, Size


def features(size: Size) -> int:
    """Return the number of convolution features of a word."""
    return sum(filters for _, filters in size.filters)


def convolution_maps(size: Size) -> list[LinearShape]:
    """Return the linear layers of the convolutions, over the vectors of neighboring characters."""
    return [LinearShape(characters * size.character_width, filters, True) for characters, filters in size.filters]


def word_maps(size: Size) -> Iterator[LinearShape]:
    """Yield the linear layers of a word: two per highway layer, and a projection."""
    wide = features(size)
    yield from [LinearShape(wide, wide, True)] * (2 * size.highway)
    yield LinearShape(wide, size.table_width, True)


def character_maps(spec: ModelSpec) -> Iterator[LinearShape]:
    """Yield all linear layers of a family that reads characters. The character table counts as one from its width to
    its rows."""
    yield LinearShape(spec.size.character_width, NUM_CHARACTERS, False)
    yield from convolution_maps(spec.size)
    yield from word_maps(spec.size)


def word_products(spec: ModelSpec) -> int:
    """Return the multiply-adds of a word for a family that reads characters."""
    positions = [MAX_WORD_LENGTH - characters + 1 for characters, _ in spec.size.filters]
    along = sum(many * linear.weights for many, linear in zip(positions, convolution_maps(spec.size), strict=True))
    return along + sum(linear.weights for linear in word_maps(spec.size))
