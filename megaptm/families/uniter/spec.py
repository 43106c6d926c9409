"""Options of image regions after a text (UNITER, arXiv:1909.11740; UNIMO, arXiv:2012.15409)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from megaptm.spec import InputSpec, ModelSpec

REGION, MASKED_REGION = 0, 1
"""Values of the batch field `tokens` at the region positions after a text: a region, or a masked region."""
NUM_BOX_VALUES = 7
"""Number of box values of a region: left, top, right, bottom, width, height and area, as shares of the image's."""


@dataclass(frozen=True, kw_only=True)
class RegionInput(InputSpec):
    """Input of detector features of an image, which follow the text."""

    name = "region"
    costs = "megaptm.families.uniter.costs:RegionCosts"
    module = "megaptm.families.uniter.regions:ImageRegions"
    fields = ("region_features", "region_boxes")
    is_appended = True
    size_keys = ("detector",)
    absence = "reads no image regions"
    excluded_keys = ("embedding",)
    reason = "reads image regions"
    zero_first = ("mask.weight",)

    norms: str = "each"
    """Normalization layers of regions: `each` of the projections of features and box, and their sum (UNITER); or only
    the `sum` (UNIMO)."""
    boxes: int = 7
    """Number of coordinates of a region: 7 with width, height and area, 5 without width and height."""
    hidden: str = "vector"
    """Replacement of masked region features: a learned `vector`, or `zeros`."""

    def errors(self, spec: ModelSpec) -> Iterator[str]:
        if "detector" not in spec.size.inputs:
            yield f"model.size custom of {spec.name} needs model.detector, its numbers of features and classes."

    def config_errors(self, config: Any, spec: ModelSpec) -> Iterator[str]:
        from megaptm.families.uniter.rules import region_errors

        return region_errors(config, spec)
