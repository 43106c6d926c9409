"""Costs of contrastive heads, which compare the samples of a global batch. No torch."""

from __future__ import annotations

from abc import abstractmethod

from megaptm.models.head_costs import HeadCosts


class ContrastHeadCosts(HeadCosts):
    """Costs of a contrastive head, a `models.contrast.ContrastHead`."""

    projects = False
    contrasts = True

    @property
    @abstractmethod
    def features(self) -> int:
        """Return the number F of features per sample that a contrastive head compares."""

    def compare_bytes(self, own: int, rows: int) -> int:
        """Return the peak bytes of comparing `own` samples with all `rows` in float32.

        They are features of all samples and two copies of their gradient, and per pair the softmax in both directions
        and one gradient before and after it.
        """
        return 4 * (3 * rows * self.features + 4 * own * rows)

    def compare_multiply_adds(self, own: int, rows: int) -> int:
        """Return the multiply-adds of the contrastive comparison, forward: products of features of each pair, in both
        directions."""
        return 2 * own * rows * self.features
