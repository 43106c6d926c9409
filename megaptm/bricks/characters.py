"""Words read by their characters (arXiv:1508.06615, as in arXiv:1802.05365), in numbers: vectors of characters, filters
over them, each filter's largest answer, highway layers, and a map to the stream."""

from __future__ import annotations

from collections.abc import Iterator

from megaptm.batch import CHARACTERS, LONGEST_WORD
from megaptm.bricks.brick import Map
from megaptm.spec import ModelSpec, Size


def features(size: Size) -> int:
    """What all filters say of a word."""
    return sum(filters for _, filters in size.filters)


def convolution_maps(size: Size) -> list[Map]:
    """Of each convolution, from so many neighbors' vectors."""
    return [Map(characters * size.character_width, filters, True) for characters, filters in size.filters]


def word_maps(size: Size) -> Iterator[Map]:
    """Of a word: two for each highway layer, and one to the stream."""
    wide = features(size)
    yield from [Map(wide, wide, True)] * (2 * size.highway)
    yield Map(wide, size.table_width, True)


def character_maps(spec: ModelSpec) -> Iterator[Map]:
    """Of a family that reads characters: all, their table as a map from its width to its rows."""
    yield Map(spec.size.character_width, CHARACTERS, False)
    yield from convolution_maps(spec.size)
    yield from word_maps(spec.size)


def word_products(spec: ModelSpec) -> int:
    """Multiply-adds of a word, in a family that reads characters."""
    positions = [LONGEST_WORD - characters + 1 for characters, _ in spec.size.filters]
    along = sum(many * one.weights for many, one in zip(positions, convolution_maps(spec.size), strict=True))
    return along + sum(one.weights for one in word_maps(spec.size))
