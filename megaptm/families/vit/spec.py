"""Options of image patches (ViT, arXiv:2010.11929)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt
from types import MappingProxyType
from typing import Any

from megaptm.errors import UserError
from megaptm.spec import Family, InputSpec, ModelSpec

Channels = tuple[float, float, float]
"""Type of a value for each of red, green and blue."""
IMAGE, PATCH, MASKED_PATCH = range(3)
"""Values of the batch field `tokens` in an image sequence: the full image (first position), a patch, or a masked
patch."""
CHANNELS = 3
"""Number of color channels of a pixel: red, green, blue."""
MAX_PIXEL_STATISTIC = 1e6
"""Maximum absolute mean and standard deviation of pixels; the smallest standard deviation is 1 over this."""


@dataclass(frozen=True, kw_only=True)
class PatchInput(InputSpec):
    """Linear projection of image patches after a class token. With tokens, the first stack reads images and the others
    read text (CLIP).

    The batch field `patches`, uint8 [S - 1, channels x pixels], holds the pixels of the patches, in row-major order.
    Within a patch the channels follow each other: all red values row by row, then green, then blue.
    """

    name = "patch"
    costs = "megaptm.families.vit.costs:PatchCosts"
    module = "megaptm.families.vit.patches:ImagePatches"
    fields = ("patches",)
    replaces_tokens = True
    reads_text = False
    size_keys = ("patch",)
    options = MappingProxyType({"pixel_mean": "mean", "pixel_std": "std"})
    absence = "reads no images"
    excluded_keys = ("embedding",)
    reason = "reads images"

    mean: Channels = (0.5, 0.5, 0.5)
    """Mean of red, green and blue in [0, 1], which is subtracted from pixels."""
    std: Channels = (0.5, 0.5, 0.5)
    """Standard deviation by which centered pixels are divided."""
    bias: bool = True
    """Whether the projection of image patches has a bias."""

    def errors(self, spec: ModelSpec) -> Iterator[str]:
        if "patch" not in spec.size.inputs:
            yield f"model.size custom of {spec.name} needs model.patch, the side length of a patch in pixels."
        grid = patches_per_side(spec)
        if spec.context < 2 or grid**2 + 1 != spec.context:
            yield (
                f"model.context ({spec.context}) must be one more than a square, for the patches of an image and the "
                f"image itself: {max(grid, 1) ** 2 + 1} or {(grid + 1) ** 2 + 1}."
            )

    def config_errors(self, config: Any, spec: ModelSpec) -> Iterator[str]:
        from megaptm.families.vit.rules import image_errors

        return image_errors(config, spec)


def patch_input(family: Family) -> PatchInput:
    """Return the record of the patches of a family that reads images."""
    record = family.find_input(PatchInput)
    assert record is not None, f"{family.name} reads no images"
    return record


def patch_side(spec: ModelSpec) -> int:
    """Return the side length of an image patch in pixels. Raise UserError if the size has none."""
    if (side := spec.size.inputs.get("patch")) is None:
        raise UserError(f"{spec.name} reads images, and its size has no patch: give model.patch.")
    return int(side)


def patches_per_side(spec: ModelSpec) -> int:
    """Return the number of patches along a side of an image. One position of the context is the class token."""
    return isqrt(spec.context - 1)
