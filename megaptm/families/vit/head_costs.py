"""Costs of the heads of ViT."""

from __future__ import annotations

from collections.abc import Mapping

from megaptm.errors import UserError
from megaptm.layers.costs import LinearShape
from megaptm.losses.token_costs import LossBytes
from megaptm.models.head_costs import HeadCosts
from megaptm.spec import ModelSpec


class ImageLabelHeadCosts(HeadCosts):
    """Costs of the image classification head on the class token: a table and one bias per label (ViT, arXiv:2010.11929,
    3.1). Papers do not count it."""

    name = "image-label"
    module = "megaptm.families.vit.head_modules:ImageLabelHead"
    label_field = "image_label"

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        if spec.family.output.tied:
            raise UserError(f"{spec.name}: the {self.name} head has a table of its own; set output.tied=False.")

    @property
    def linears(self) -> Mapping[str, LinearShape]:
        return {}

    @property
    def rows(self) -> int:
        return self.width + 1

    @property
    def projections(self) -> list[tuple[int, int]]:
        return [(self.width, self.spec.vocabulary)]

    def multiply_adds(self, positions: int) -> int:
        """Return the multiply-adds of image classification; one position is projected."""
        return super().multiply_adds(1)

    def loss_bytes(self, positions: int, element: int, *, tensor: int = 1, logit_bytes: int | None) -> LossBytes:
        """Return the bytes of the loss of image classification. One position per image is projected, but all are
        gathered."""
        linear = super().loss_bytes(1, element, tensor=tensor, logit_bytes=logit_bytes)
        return LossBytes(linear.saved + 2 * (positions - 1) * self.width * element, linear.transient)


class MaskedPatchHeadCosts(HeadCosts):
    """Costs of the head that predicts the mean color, of 512, of masked patches (ViT, arXiv:2010.11929, appendix
    B.1.2)."""

    name = "masked-patch"
    module = "megaptm.families.vit.head_modules:MaskedPatchHead"
    label_field = "patch_colors"
    projects = False
    classes = 512
    predicted_only = True

    @property
    def linears(self) -> Mapping[str, LinearShape]:
        return {"classify": LinearShape(self.width, self.classes, True)}


HEADS = (ImageLabelHeadCosts, MaskedPatchHeadCosts)
