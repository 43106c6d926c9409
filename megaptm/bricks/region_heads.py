"""Heads of models that read regions of images, in numbers (UNITER, arXiv:1909.11740, section 3.2)."""

from __future__ import annotations

from collections.abc import Mapping

from megaptm.bricks.brick import Map
from megaptm.bricks.head import HeadBrick, LossBytes
from megaptm.bricks.layer import norm_parameters
from megaptm.bricks.regions import detector_of


class _HiddenRegionHeadBrick(HeadBrick):
    """Base of heads that are asked about hidden regions: a transform and a norm."""

    projects = False
    predicted_only = True

    @property
    def maps(self) -> Mapping[str, Map]:
        return {"transform": Map(self.width, self.width, True)}

    @property
    def others(self) -> int:
        return norm_parameters(self.block, self.width)


class RegionFeatureHeadBrick(_HiddenRegionHeadBrick):
    """MRFR, the features of hidden regions: the map of features turned around, and a bias."""

    name = "mrfr"
    answers = "hidden_features"
    regresses = True
    chooses = False

    @property
    def others(self) -> int:
        return super().others + detector_of(self.spec).features

    def multiply_adds(self, positions: int) -> int:
        return super().multiply_adds(positions) + positions * self.width * detector_of(self.spec).features


class _RegionClassHeadBrick(_HiddenRegionHeadBrick):
    """Base of heads that say a hidden region's class: a map to the classes."""

    @property
    def classes(self) -> int:  # type: ignore[override]  # a constant of other heads
        return detector_of(self.spec).classes

    @property
    def maps(self) -> Mapping[str, Map]:
        return {**super().maps, "classify": Map(self.width, self.classes, True)}


class RegionLabelHeadBrick(_RegionClassHeadBrick):
    """MRC, the class of hidden regions."""

    name = "mrc"
    answers = "region_labels"


class RegionDistributionHeadBrick(_RegionClassHeadBrick):
    """MRC-kl, how likely each class is of hidden regions."""

    name = "mrc-kl"
    answers = "region_distributions"
    chooses = False


class WordRegionHeadBrick(HeadBrick):
    """WRA, how far words are from regions by optimal transport; no parameter."""

    name = "wra"
    answers = "matched"
    projects = False
    chooses = False

    @property
    def maps(self) -> Mapping[str, Map]:
        return {}

    def loss_bytes(self, positions: int, element: int, *, tensor: int = 1, chunked: bool = True) -> LossBytes:
        """Besides what it reads, vectors of length 1 and their gradients in float32."""
        read = super().loss_bytes(positions, element, tensor=tensor, chunked=chunked)
        return LossBytes(read.saved + 2 * positions * self.width * 4, read.transient)
