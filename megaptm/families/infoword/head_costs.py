"""Costs of the head of InfoWord."""

from __future__ import annotations

from collections.abc import Mapping

from megaptm.layers.costs import LinearShape
from megaptm.models.contrast_costs import ContrastHeadCosts


class InfoMaxHeadCosts(ContrastHeadCosts):
    """Contrast of a text with an n-gram that was masked in it, over the whole batch (InfoWord, arXiv:1910.08350,
    section 4). One projection for both."""

    name = "infomax"
    module = "megaptm.families.infoword.head_modules:InfoMaxHead"
    label_field = "ngram_start"

    @property
    def features(self) -> int:
        return 2 * self.width

    @property
    def linears(self) -> Mapping[str, LinearShape]:
        return {"project": LinearShape(self.width, self.width, False)}

    def num_transformed_positions(self, positions: int) -> int:
        """Return the number of positions that InfoWord's head projects: the first of the text and of the n-gram."""
        return 2

    def compare_bytes(self, own: int, rows: int) -> int:
        """Return the peak bytes of InfoWord's comparison, during the scores: features, gradient of the own ones, and
        per pair five values of its score and the masks of positives and of existing pairs."""
        return 4 * ((rows + own) * self.features + 5 * own * rows) + 2 * own * rows

    def compare_multiply_adds(self, own: int, rows: int) -> int:
        """Return the multiply-adds of comparing texts with n-grams, in one direction."""
        return own * rows * self.width


HEADS = (InfoMaxHeadCosts,)
