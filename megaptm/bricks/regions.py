"""Regions of images in numbers (UNITER, arXiv:1909.11740, section 3.1): a map of what a detector says of each, one of
where it lies, a norm of either and of their sum, and a vector in the place of what is hidden. UNIMO (arXiv:2012.15409)
has the last norm alone, and nothing in that place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from megaptm.batch import BOX_NUMBERS
from megaptm.bricks.brick import Map
from megaptm.errors import UserError
from megaptm.spec import ModelSpec

NORMS = {"each": 3, "sum": 1}
"""Word of `Family.region_norms` -> how many there are."""
BOXES = (BOX_NUMBERS, BOX_NUMBERS - 2)
"""Numbers of a box that may be read: all, or those without its width and height."""
HIDDEN = ("vector", "zeros")


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


def region_norms(spec: ModelSpec) -> int:
    """Norms at the input of regions."""
    if spec.family.region_norms not in NORMS:
        raise _unknown(spec, "region_norms", NORMS)
    return NORMS[spec.family.region_norms]


def region_maps(spec: ModelSpec) -> Iterator[Map]:
    """Of a family that reads regions: all, a table as a map from its width to its rows. The table of what is hidden,
    where there is one, has two rows, as the released one: what is shown has the first, which is zero."""
    features, width = detector_of(spec).features, spec.size.table_width
    yield feature_map(spec)
    if spec.family.region_boxes not in BOXES:
        raise _unknown(spec, "region_boxes", map(str, BOXES))
    yield Map(spec.family.region_boxes, width, True)
    if spec.family.hidden_regions not in HIDDEN:
        raise _unknown(spec, "hidden_regions", HIDDEN)
    if spec.family.hidden_regions == "vector":
        yield Map(features, 2, False)


def region_products(spec: ModelSpec) -> tuple[int, int]:
    """Multiply-adds of a region: of the map of features, into which a gradient goes for what is hidden; and of the map
    of boxes, into which none goes."""
    features, box, *_ = region_maps(spec)
    return features.weights, box.weights


def given_bytes(spec: ModelSpec) -> int:
    """Of a region in a batch: features in half precision, a box in float32."""
    return 2 * detector_of(spec).features + 4 * BOX_NUMBERS


def region_bytes(spec: ModelSpec, element: int) -> int:
    """What the backward pass keeps of a region, in elements of so many bytes: what the maps and the norms read."""
    features, box, *_ = region_maps(spec)
    return (features.inputs + box.inputs + region_norms(spec) * features.outputs) * element


def feature_map(spec: ModelSpec) -> Map:
    """From a region's features to the stream."""
    return Map(detector_of(spec).features, spec.size.table_width, True)


def _unknown(spec: ModelSpec, row: str, known: Iterable[str]) -> UserError:
    said = getattr(spec.family, row)
    return UserError(f"{spec.name}: {row} is {said!r}, which is unknown; use one of {', '.join(known)}.")
