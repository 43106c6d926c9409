"""Costs of heads of image models."""

from __future__ import annotations

from collections.abc import Mapping

from megaptm.bricks.brick import LinearShape
from megaptm.bricks.head import HeadBrick, LossBytes
from megaptm.errors import UserError
from megaptm.spec import ModelSpec


class ImageLabelHeadBrick(HeadBrick):
    """Image classification from the class token: a table and one bias per label (ViT, arXiv:2010.11929, 3.1). Papers do
    not count it."""

    name = "image-label"
    label_field = "image_label"

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        if spec.family.tied:
            raise UserError(f"{spec.name}: the {self.name} head has a table of its own; set tied=False.")

    @property
    def maps(self) -> Mapping[str, LinearShape]:
        return {}

    @property
    def rows(self) -> int:
        return self.width + 1

    @property
    def projections(self) -> list[tuple[int, int]]:
        return [(self.width, self.spec.vocabulary)]

    def multiply_adds(self, positions: int) -> int:
        """Return the multiply-adds; one position is projected."""
        return super().multiply_adds(1)

    def loss_bytes(self, positions: int, element: int, *, tensor: int = 1, chunked: bool = True) -> LossBytes:
        """Return the bytes. One position per image is projected, but all are gathered."""
        linear = super().loss_bytes(1, element, tensor=tensor, chunked=chunked)
        return LossBytes(linear.saved + 2 * (positions - 1) * self.width * element, linear.transient)


class MaskedPatchHeadBrick(HeadBrick):
    """Mean color, of 512, of masked patches (ViT, arXiv:2010.11929, appendix B.1.2)."""

    name = "masked-patch"
    label_field = "patch_colors"
    projects = False
    classes = 512
    predicted_only = True

    @property
    def maps(self) -> Mapping[str, LinearShape]:
        return {"classify": LinearShape(self.width, self.classes, True)}


ROWS_COMPARED = 1024
"""Samples whose images and texts are compared with all at once (`models.image_text`): with 32,768 samples, 0.5 GB."""


class ImageTextHeadBrick(HeadBrick):
    """Contrast of images and texts over the whole batch, in both directions (CLIP, arXiv:2103.00020, figure 3): a
    projection of each to one space, as wide as the text stack, and a temperature. Papers count it."""

    name = "image-text"
    label_field = "text_end"
    projects = False
    contrasts = True
    reads_end = True
    other_parameters = 1

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        if len(self.readings) != 2:
            raise UserError(f"{spec.name}: the {self.name} head reads two stacks, of images and of texts: name both.")

    @property
    def embedding(self) -> int:
        """Width of the joint space of images and texts."""
        return self.spec.size_of(self.readings[1].stack).width

    @property
    def features(self) -> int:  # type: ignore[override]  # a constant of other heads
        return 2 * self.embedding + 1

    @property
    def maps(self) -> Mapping[str, LinearShape]:
        return {
            stack: LinearShape(self.spec.output_width(stack), self.embedding, False)
            for stack in [reading.stack for reading in self.readings]
        }

    @property
    def published(self) -> int:
        return self.parameters

    def multiply_adds(self, positions: int) -> int:
        """Return the multiply-adds for one position of each."""
        return super().multiply_adds(1)

    def compare_bytes(self, own: int, rows: int) -> int:
        """Return the bytes for a part of the samples: the backward pass recomputes their comparisons, part by part."""
        return super().compare_bytes(min(own, ROWS_COMPARED), rows)
