"""Costs of the heads of UNITER (arXiv:1909.11740, section 3.2)."""

from __future__ import annotations

from collections.abc import Mapping

from megaptm.families.uniter.costs import detector_sizes
from megaptm.layers.costs import LinearShape
from megaptm.layers.layer_costs import norm_parameters
from megaptm.losses.token_costs import LossBytes
from megaptm.models.head_costs import HeadCosts, RowClassHeadCosts


class ImageTextMatchHeadCosts(RowClassHeadCosts):
    """Costs of UNITER's head ITM: whether an image's regions match a text."""

    name = "itm"
    label_field = "matched"
    pooler_published = True


class _HiddenRegionHeadCosts(HeadCosts):
    """Costs of heads for masked regions (UNITER): linear layer and norm. Base class."""

    projects = False
    predicted_only = True

    @property
    def linears(self) -> Mapping[str, LinearShape]:
        return {"transform": LinearShape(self.width, self.width, True)}

    @property
    def other_parameters(self) -> int:
        return norm_parameters(self.block, self.width)


class RegionFeatureHeadCosts(_HiddenRegionHeadCosts):
    """Costs of UNITER's head MRFR: features of masked regions, by the transposed projection of features and a bias."""

    name = "mrfr"
    module = "megaptm.families.uniter.head_modules:RegionFeatureHead"
    label_field = "masked_region_features"
    tied_input = "region"
    is_classifier = False

    @property
    def other_parameters(self) -> int:
        return super().other_parameters + detector_sizes(self.spec).features

    def multiply_adds(self, positions: int) -> int:
        return super().multiply_adds(positions) + positions * self.width * detector_sizes(self.spec).features


class _RegionClassHeadCosts(_HiddenRegionHeadCosts):
    """Costs of UNITER's heads that classify masked regions: a linear layer to the classes. Base class."""

    @property
    def classes(self) -> int:  # type: ignore[override]  # a constant of other heads
        return detector_sizes(self.spec).classes

    @property
    def linears(self) -> Mapping[str, LinearShape]:
        return {**super().linears, "classify": LinearShape(self.width, self.classes, True)}


class RegionLabelHeadCosts(_RegionClassHeadCosts):
    """Costs of UNITER's head MRC: class of masked regions."""

    name = "mrc"
    module = "megaptm.families.uniter.head_modules:RegionLabelHead"
    label_field = "region_labels"


class RegionDistributionHeadCosts(_RegionClassHeadCosts):
    """Costs of UNITER's head MRC-kl: class distribution of masked regions."""

    name = "mrc-kl"
    module = "megaptm.families.uniter.head_modules:RegionDistributionHead"
    label_field = "region_distributions"
    is_classifier = False


class WordRegionHeadCosts(HeadCosts):
    """Costs of UNITER's head WRA: distance of words and regions by optimal transport. No parameters."""

    name = "wra"
    module = "megaptm.families.uniter.head_modules:WordRegionHead"
    label_field = "matched"
    projects = False
    is_classifier = False

    @property
    def linears(self) -> Mapping[str, LinearShape]:
        return {}

    def loss_bytes(self, positions: int, element: int, *, tensor: int = 1, logit_bytes: int | None) -> LossBytes:
        """Return the bytes of the word-region loss: the input, its normalized vectors and their gradients in
        float32."""
        read = super().loss_bytes(positions, element, tensor=tensor, logit_bytes=logit_bytes)
        return LossBytes(read.saved + 2 * positions * self.width * 4, read.transient)


HEADS = (
    ImageTextMatchHeadCosts,
    WordRegionHeadCosts,
    RegionFeatureHeadCosts,
    RegionLabelHeadCosts,
    RegionDistributionHeadCosts,
)
