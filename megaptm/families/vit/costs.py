"""Costs of image patches (arXiv:2010.11929, 3.1): projection of a patch's pixels, class token, and a mask vector for
hidden patches if some are predicted."""

from __future__ import annotations

from megaptm.families.vit.spec import CHANNELS, patch_side
from megaptm.layers.costs import LinearShape
from megaptm.models.embed_costs import InputCosts


class PatchCosts(InputCosts):
    """Linear layers and costs of image patches. One position of a sequence is the class token."""

    @property
    def project(self) -> LinearShape:
        """Return the projection of an image patch's pixels, with all channels, to the hidden states."""
        width = self.spec.table_width(next(iter(self.spec.family.stacks)))
        return LinearShape(CHANNELS * patch_side(self.spec) ** 2, width, self.record.bias)

    @property
    def has_mask(self) -> bool:
        """Whether the model predicts masked image patches, and so has a mask vector."""
        return "masked-patch" in self.spec.family.heads

    @property
    def linears(self) -> tuple[LinearShape, ...]:
        """Return all linear layers of image patches; vectors count as layers with one row."""
        return self.project, *[LinearShape(self.project.outputs, 1, False)] * (1 + self.has_mask)

    @property
    def applied_linears(self) -> tuple[tuple[LinearShape, bool], ...]:
        return ((self.project, False),)

    def multiply_adds(self, positions: int) -> tuple[int, int]:
        return super().multiply_adds(positions - 1)

    def batch_bytes(self, positions: int) -> int:
        return (positions - 1) * self.project.inputs

    def saved_bytes(self, positions: int, element: int) -> int:
        """Return the bytes of pixels that image patches save for the weight gradient of the projection."""
        return (positions - 1) * self.project.inputs * element
