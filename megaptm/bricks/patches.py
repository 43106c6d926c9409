"""Images read by their patches (arXiv:2010.11929, 3.1), in numbers: a map from a patch's pixels to the stream, a vector
for the image as a whole, and one for patches that are not shown, where such are asked about."""

from __future__ import annotations

from collections.abc import Iterator

from megaptm.batch import CHANNELS
from megaptm.bricks.brick import Map
from megaptm.errors import UserError
from megaptm.spec import ModelSpec


def patch_map(spec: ModelSpec) -> Map:
    """From the pixels of a patch, all channels of them, to the stream."""
    if spec.size.patch is None:
        raise UserError(f"{spec.name} reads images, and its size has no patch: give model.patch.")
    return Map(CHANNELS * spec.size.patch**2, _width(spec), spec.family.patch_bias)


def patch_maps(spec: ModelSpec) -> Iterator[Map]:
    """Of a family that reads images: all, vectors as maps from their width to one row."""
    yield patch_map(spec)
    yield from [Map(_width(spec), 1, False)] * (1 + spec.masks_patches)


def patch_products(spec: ModelSpec, places: int) -> int:
    """Multiply-adds of a row of so many places, of which one is the image's; no gradient goes to pixels."""
    return (places - 1) * patch_map(spec).weights


def _width(spec: ModelSpec) -> int:
    return spec.table_width(next(iter(spec.family.stacks)))
