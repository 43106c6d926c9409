"""Heads that compare two sides of a row with those of all rows, in numbers."""

from __future__ import annotations

from collections.abc import Mapping

from megaptm.batch import COMPARED_IMAGES, COMPARED_TEXTS
from megaptm.bricks.brick import Map
from megaptm.bricks.head import HeadBrick

COMPARED = COMPARED_IMAGES + COMPARED_TEXTS
"""Vectors of a row of images and texts."""


class CrossModalHeadBrick(HeadBrick):
    """CMCL: an image and its texts, those that say the same and those that do not, and images like it, in the whole
    batch (UNIMO, arXiv:2012.15409, section 2.1); no parameter."""

    name = "cmcl"
    answers = "right_texts"
    projects = False
    chooses = False
    contrasts = True

    @property
    def features(self) -> int:  # type: ignore[override]  # a constant of other heads
        """Vectors of images and texts, and which of these there are."""
        return (self.width + 1) * COMPARED

    @property
    def maps(self) -> Mapping[str, Map]:
        return {}

    def compare_bytes(self, own: int, rows: int) -> int:
        """As others, of each image with all texts and of each caption with all images: besides scores and what the
        softmax says of them, which are right and which are there."""
        pairs = own * rows * COMPARED
        return 4 * (3 * rows * self.features + 4 * pairs) + 2 * pairs

    def compare_multiply_adds(self, own: int, rows: int) -> int:
        return own * rows * self.width * COMPARED


class InfoMaxHeadBrick(HeadBrick):
    """A text and an n-gram that was hidden in it, in the whole batch (InfoWord, arXiv:1910.08350, section 4): one map
    for both."""

    name = "infomax"
    answers = "ngram_start"
    projects = False
    contrasts = True

    @property
    def features(self) -> int:  # type: ignore[override]  # a constant of other heads
        return 2 * self.width

    @property
    def maps(self) -> Mapping[str, Map]:
        return {"project": Map(self.width, self.width, False)}

    def mapped(self, positions: int) -> int:
        """The first place of either."""
        return 2

    def compare_bytes(self, own: int, rows: int) -> int:
        """At most, when scores are: the features, and their own; of each pair five numbers of its score, which is right
        and which is there."""
        return 4 * ((rows + own) * self.features + 5 * own * rows) + 2 * own * rows

    def compare_multiply_adds(self, own: int, rows: int) -> int:
        """Of texts with n-grams, one way."""
        return own * rows * self.width
