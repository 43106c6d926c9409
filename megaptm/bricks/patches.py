"""Costs of image patches (arXiv:2010.11929, 3.1): projection of a patch's pixels, class token, and a mask vector for
hidden patches if some are predicted."""

from __future__ import annotations

from collections.abc import Iterator

from megaptm.batch import CHANNELS
from megaptm.bricks.brick import LinearShape
from megaptm.errors import UserError
from megaptm.spec import ModelSpec


def patch_map(spec: ModelSpec) -> LinearShape:
    """Return the projection of a patch's pixels, with all channels, to the hidden states."""
    if spec.size.patch is None:
        raise UserError(f"{spec.name} reads images, and its size has no patch: give model.patch.")
    return LinearShape(CHANNELS * spec.size.patch**2, _width(spec), spec.family.patch_bias)


def patch_maps(spec: ModelSpec) -> Iterator[LinearShape]:
    """Yield all linear layers of a family that reads images; vectors count as layers with one row."""
    yield patch_map(spec)
    yield from [LinearShape(_width(spec), 1, False)] * (1 + spec.masks_patches)


def patch_products(spec: ModelSpec, places: int) -> int:
    """Return the multiply-adds of a sequence of `places`, one of which is the class token. Pixels get no gradient."""
    return (places - 1) * patch_map(spec).weights


def _width(spec: ModelSpec) -> int:
    return spec.table_width(next(iter(spec.family.stacks)))
