"""Key of the section `model` for models that read image regions."""

from __future__ import annotations

from typing import Annotated

from pydantic import Strict

from megaptm.section import Count, Section


class RegionKeys(Section):
    """Key of image regions in the section `model`."""

    detector: Annotated[tuple[Count, Count], Strict(False)] | None = None
    """Image regions: number of a region's features, and number of the detector's classes, including the background.
    Default: from `size`."""


MODEL_KEYS = RegionKeys
