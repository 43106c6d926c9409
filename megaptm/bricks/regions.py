"""Costs of image regions (UNITER, arXiv:1909.11740, section 3.1): projections of a region's features and box, a norm
of each and of their sum, and a mask vector. UNIMO (arXiv:2012.15409) has only the last norm, and zeros for hidden
regions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from megaptm.batch import NUM_BOX_VALUES
from megaptm.bricks.brick import LinearShape
from megaptm.errors import UserError
from megaptm.spec import ModelSpec

NORMS = {"each": 3, "sum": 1}
"""Value of `Family.region_norms` -> number of norms."""
BOXES = (NUM_BOX_VALUES, NUM_BOX_VALUES - 2)
"""Numbers of a box that are read: all, or those without its width and height."""
HIDDEN = ("vector", "zeros")


class Detector(NamedTuple):
    """Output sizes of the region detector."""

    features: int
    """Features of a region."""
    classes: int
    """Number of classes; the first is the background."""


def detector_of(spec: ModelSpec) -> Detector:
    """Return the detector of a size. Raise UserError if it is missing."""
    if spec.size.detector is None:
        raise UserError(f"{spec.name} reads regions of images, and its size has no detector: give model.detector.")
    return Detector(*spec.size.detector)


def region_norms(spec: ModelSpec) -> int:
    """Return the number of norms at the input of regions."""
    if spec.family.region_norms not in NORMS:
        raise _unknown(spec, "region_norms", NORMS)
    return NORMS[spec.family.region_norms]


def region_maps(spec: ModelSpec) -> Iterator[LinearShape]:
    """Yield all linear layers of a family that reads regions; a table counts as one from its width to its rows. The
    mask table has two rows, as in the released code: row 0, for visible regions, is zero."""
    features, width = detector_of(spec).features, spec.size.table_width
    yield feature_map(spec)
    if spec.family.region_boxes not in BOXES:
        raise _unknown(spec, "region_boxes", map(str, BOXES))
    yield LinearShape(spec.family.region_boxes, width, True)
    if spec.family.hidden_regions not in HIDDEN:
        raise _unknown(spec, "hidden_regions", HIDDEN)
    if spec.family.hidden_regions == "vector":
        yield LinearShape(features, 2, False)


def region_products(spec: ModelSpec) -> tuple[int, int]:
    """Return the multiply-adds of a region: projection of features, whose input gets a gradient for hidden regions, and
    of the box, whose input gets none."""
    features, box, *_ = region_maps(spec)
    return features.weights, box.weights


def given_bytes(spec: ModelSpec) -> int:
    """Return the bytes of a region in a batch: features in half precision, a box in float32."""
    return 2 * detector_of(spec).features + 4 * NUM_BOX_VALUES


def region_bytes(spec: ModelSpec, element: int) -> int:
    """Return the bytes per region that the backward pass needs: inputs of projections and norms."""
    features, box, *_ = region_maps(spec)
    return (features.inputs + box.inputs + region_norms(spec) * features.outputs) * element


def feature_map(spec: ModelSpec) -> LinearShape:
    """Return the projection from a region's features to the hidden states."""
    return LinearShape(detector_of(spec).features, spec.size.table_width, True)


def _unknown(spec: ModelSpec, row: str, known: Iterable[str]) -> UserError:
    said = getattr(spec.family, row)
    return UserError(f"{spec.name}: {row} is {said!r}, which is unknown; use one of {', '.join(known)}.")
