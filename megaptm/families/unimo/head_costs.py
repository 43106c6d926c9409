"""Costs of the head of UNIMO."""

from __future__ import annotations

from collections.abc import Mapping

from megaptm.layers.costs import LinearShape
from megaptm.models.contrast_costs import ContrastHeadCosts

MAX_COMPARED_TEXTS = 8
"""Maximum number of texts with which UNIMO compares an image: the caption, its rewritten versions, and retrieved
texts."""
MAX_COMPARED_IMAGES = 4
"""Maximum number of images with which UNIMO compares a caption: its own image, and retrieved ones."""
COMPARED = MAX_COMPARED_IMAGES + MAX_COMPARED_TEXTS
"""Number of vectors in a sample of images and texts that UNIMO compares."""


class CrossModalHeadCosts(ContrastHeadCosts):
    """CMCL: contrast of an image with its positive and negative texts and with similar images, over the whole batch
    (UNIMO, arXiv:2012.15409, section 2.1). No parameters."""

    name = "cmcl"
    module = "megaptm.families.unimo.head_modules:CrossModalHead"
    label_field = "num_positive_texts"
    is_classifier = False

    @property
    def features(self) -> int:
        """Return the number of features of UNIMO's comparison: vectors of images and texts, and flags of those that
        exist."""
        return (self.width + 1) * COMPARED

    @property
    def linears(self) -> Mapping[str, LinearShape]:
        return {}

    def compare_bytes(self, own: int, rows: int) -> int:
        """Return the peak bytes of UNIMO's comparison: each image with all texts, and each caption with all images.
        Besides scores and softmax of the base class, it has masks of positives and of existing pairs."""
        pairs = own * rows * COMPARED
        return 4 * (3 * rows * self.features + 4 * pairs) + 2 * pairs

    def compare_multiply_adds(self, own: int, rows: int) -> int:
        return own * rows * self.width * COMPARED


HEADS = (CrossModalHeadCosts,)
