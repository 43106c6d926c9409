"""Costs of image regions (UNITER, arXiv:1909.11740, section 3.1): projections of a region's features and box, a norm
of each and of their sum, and a mask vector. UNIMO (arXiv:2012.15409) has only the last norm, and zeros for hidden
regions."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from megaptm.errors import UserError
from megaptm.families.uniter.spec import NUM_BOX_VALUES
from megaptm.layers.costs import LinearShape
from megaptm.models.embed_costs import InputCosts
from megaptm.spec import ModelSpec

NORMS = {"each": 3, "sum": 1}
"""Value of `RegionInput.norms` -> number of norms."""
BOXES = (NUM_BOX_VALUES, NUM_BOX_VALUES - 2)
"""Values of a region's box that the model reads: all, or those without its width and height."""
HIDDEN = ("vector", "zeros")


class DetectorSizes(NamedTuple):
    """Output sizes of the region detector."""

    features: int
    """Number of features that the detector outputs for a region."""
    classes: int
    """Number of classes of the detector; the first is the background."""


def detector_sizes(spec: ModelSpec) -> DetectorSizes:
    """Return the region detector of a size. Raise UserError if it is missing."""
    if (sizes := spec.size.inputs.get("detector")) is None:
        raise UserError(f"{spec.name} reads regions of images, and its size has no detector: give model.detector.")
    return DetectorSizes(*sizes)


class RegionCosts(InputCosts):
    """Linear layers and costs of image regions."""

    @property
    def num_norms(self) -> int:
        self._check_option("norms", NORMS)
        return NORMS[self.record.norms]

    @property
    def tied_linear(self) -> LinearShape:
        """Return the projection from a region's features to the hidden states."""
        return LinearShape(detector_sizes(self.spec).features, self.spec.size.table_width, True)

    @property
    def linears(self) -> tuple[LinearShape, ...]:
        """Return all linear layers of image regions; a table is listed as a linear layer from its width to its
        rows. The mask table has two rows, as in the released code: row 0, for visible regions, is zero."""
        self._check_option("boxes", BOXES)
        self._check_option("hidden", HIDDEN)
        box = LinearShape(self.record.boxes, self.spec.size.table_width, True)
        mask = LinearShape(self.tied_linear.inputs, 2, False)
        return (self.tied_linear, box, mask) if self.record.hidden == "vector" else (self.tied_linear, box)

    @property
    def applied_linears(self) -> tuple[tuple[LinearShape, bool], ...]:
        """Return the projections of region features, whose input gets a gradient for hidden regions, and of the box,
        whose input gets none."""
        features, box, *_ = self.linears
        return (features, True), (box, False)

    def batch_bytes(self, positions: int) -> int:
        """Return the bytes of image regions in a batch: features in half precision, a box in float32."""
        return positions * (2 * self.tied_linear.inputs + 4 * NUM_BOX_VALUES)

    def saved_bytes(self, positions: int, element: int) -> int:
        """Return the bytes that image regions save: inputs of projections and norms."""
        features, box, *_ = self.linears
        return positions * (features.inputs + box.inputs + self.num_norms * features.outputs) * element

    def _check_option(self, option: str, known: Collection[str | int]) -> None:
        if (value := getattr(self.record, option)) not in known:
            raise UserError(
                f"{self.spec.name}: RegionInput.{option} is {value!r}, which is unknown; use one of "
                f"{', '.join(map(str, known))}."
            )
