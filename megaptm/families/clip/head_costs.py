"""Costs of the head of CLIP."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from megaptm.errors import UserError
from megaptm.layers.costs import LinearShape
from megaptm.models.contrast_costs import ContrastHeadCosts
from megaptm.spec import ModelSpec

ROWS_COMPARED = 1024
"""Number of samples whose images and texts CLIP's head compares with all others at once: with 32,768 samples, 0.5
GB."""


class ImageTextHeadCosts(ContrastHeadCosts):
    """Costs of CLIP's contrastive head over the global batch, in both directions (arXiv:2103.00020, figure 3). It
    projects images and texts to one space, as wide as the text stack, and has a temperature. Papers count its
    parameters."""

    name = "image-text"
    module = "megaptm.families.clip.head_modules:ImageTextHead"
    label_field = "text_end"
    reads_end = True
    initial_values = MappingProxyType({"scale": -float(np.log(0.07))})
    """Initial log temperature of CLIP's head: log(1 / 0.07) (arXiv:2103.00020, 2.5)."""
    other_parameters = 1

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        if len(self.head_inputs) != 2:
            raise UserError(f"{spec.name}: the {self.name} head reads two stacks, of images and of texts: name both.")

    @property
    def embedding(self) -> int:
        """Return the width of the joint space of images and texts."""
        return self.spec.size_of(self.head_inputs[1].stack).width

    @property
    def features(self) -> int:
        return 2 * self.embedding + 1

    @property
    def linears(self) -> Mapping[str, LinearShape]:
        return {
            stack: LinearShape(self.spec.output_width(stack), self.embedding, False)
            for stack in [reading.stack for reading in self.head_inputs]
        }

    @property
    def published(self) -> int:
        return self.parameters

    def multiply_adds(self, positions: int) -> int:
        """Return the multiply-adds of the image-text head for one position of each."""
        return super().multiply_adds(1)

    def compare_bytes(self, own: int, rows: int) -> int:
        """Return the peak bytes of the comparison of images with texts. The backward pass recomputes the comparison
        for a part of the samples at a time."""
        return super().compare_bytes(min(own, ROWS_COMPARED), rows)


HEADS = (ImageTextHeadCosts,)
