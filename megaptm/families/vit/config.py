"""Keys of the section `model` for models that read images."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, Strict

from megaptm.families.vit.spec import MAX_PIXEL_STATISTIC
from megaptm.section import Section

Mean = Annotated[float, Field(ge=-MAX_PIXEL_STATISTIC, le=MAX_PIXEL_STATISTIC)]
Spread = Annotated[float, Field(ge=1 / MAX_PIXEL_STATISTIC, le=MAX_PIXEL_STATISTIC)]


class PatchKeys(Section):
    """Keys of patches and pixels in the section `model`."""

    patch: Annotated[int, Field(ge=1, le=1 << 12)] | None = None
    """Images: side length of a patch in pixels. Default: from `size`. model.context is one more than the number of
    patches."""
    pixel_mean: Annotated[tuple[Mean, Mean, Mean], Strict(False)] | None = None
    """Images: mean of red, green and blue (from 0 to 1). It is subtracted from pixel values. Default: from `family`.
    ImageNet's, used by many models: [0.485, 0.456, 0.406]."""
    pixel_std: Annotated[tuple[Spread, Spread, Spread], Strict(False)] | None = None
    """Images: standard deviation of red, green and blue. Pixel values are divided by it. Default: from `family`.
    ImageNet's: [0.229, 0.224, 0.225]."""


MODEL_KEYS = PatchKeys
