"""Heads that compare an image with several texts of its own, and with those of others, in numbers (UNIMO,
arXiv:2012.15409, section 2.1)."""

from __future__ import annotations

from collections.abc import Mapping

from megaptm.batch import COMPARED_TEXTS
from megaptm.bricks.brick import Map
from megaptm.bricks.head import HeadBrick


class CrossModalHeadBrick(HeadBrick):
    """CMCL: an image and its texts, those that say the same and those that do not, in the whole batch; no parameter."""

    name = "cmcl"
    answers = "right_texts"
    projects = False
    chooses = False
    contrasts = True

    @property
    def features(self) -> int:  # type: ignore[override]  # a constant of other heads
        """An image's vector, its texts', and which of these there are."""
        return self.width * (1 + COMPARED_TEXTS) + COMPARED_TEXTS

    @property
    def maps(self) -> Mapping[str, Map]:
        return {}

    def compare_bytes(self, own: int, rows: int) -> int:
        """As others, of each image with all texts and of each caption with all images: besides scores and what the
        softmax says of them, which are right and which are there."""
        pairs = own * rows * (1 + COMPARED_TEXTS)
        return 4 * (3 * rows * self.features + 4 * pairs) + 2 * pairs

    def compare_multiply_adds(self, own: int, rows: int) -> int:
        return own * rows * self.width * (1 + COMPARED_TEXTS)
