"""Regions of images in numbers (UNITER, arXiv:1909.11740, section 3.1): a map of what a detector says of each, one of
where it lies, a norm of either and of their sum, and a vector in the place of what is hidden."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from megaptm.batch import BOX_NUMBERS
from megaptm.bricks.brick import Map
from megaptm.errors import UserError
from megaptm.spec import ModelSpec

REGION_NORMS = 3
"""At the input of regions."""


class Detector(NamedTuple):
    """What finds regions."""

    features: int
    """Numbers of a region's features."""
    classes: int
    """That it tells apart; the first is the background."""


def detector_of(spec: ModelSpec) -> Detector:
    """A `UserError` where the size does not say."""
    if spec.size.detector is None:
        raise UserError(f"{spec.name} reads regions of images, and its size has no detector: give model.detector.")
    return Detector(*spec.size.detector)


def region_maps(spec: ModelSpec) -> Iterator[Map]:
    """Of a family that reads regions: all, a table as a map from its width to its rows. The table of what is hidden has
    two rows, as the released one: what is shown has the first, which is zero."""
    features, width = detector_of(spec).features, spec.size.table_width
    yield feature_map(spec)
    yield Map(BOX_NUMBERS, width, True)
    yield Map(features, 2, False)


def feature_map(spec: ModelSpec) -> Map:
    """From a region's features to the stream."""
    return Map(detector_of(spec).features, spec.size.table_width, True)
