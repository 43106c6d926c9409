"""Heads of UNITER (arXiv:1909.11740, section 3.2): features and classes of masked regions, and
alignment of words and regions. Image-text matching is a `RowClassHead`."""

# S sequence, B batch, A target positions, D width, F features of a region, C classes, T words, R regions

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megaptm.batch import IGNORED
from megaptm.families.uniter.costs import detector_sizes
from megaptm.families.uniter.transport import cosine_costs, transport_distance
from megaptm.layers.norm import Norm
from megaptm.layers.split import Linear
from megaptm.models.head_costs import HeadCosts
from megaptm.models.loss import Loss, class_loss, count_labels
from megaptm.models.target_positions import target_states
from megaptm.spec import ModelSpec


class _HiddenRegions(nn.Module):
    """Base class of UNITER's heads for masked regions: transform and norm."""

    def __init__(self, spec: ModelSpec, costs: HeadCosts) -> None:
        super().__init__()
        self.label_field = costs.label_field
        self.transform = Linear.from_shape(costs.linears["transform"])
        self.norm = Norm(costs.width, costs.block.norm)

    def _read(self, x: Tensor) -> Tensor:
        return self.norm(F.gelu(self.transform(x)))

    def _read_targets(self, x_SBD: Tensor, batch: dict[str, Tensor]) -> Tensor:
        return self._read(target_states(x_SBD, batch, self.label_field))


class RegionFeatureHead(_HiddenRegions):
    """UNITER's head MRFR: regression of masked region features by the transposed feature projection, with squared
    error. Each feature is a label: the loss is a mean over regions and features."""

    def __init__(self, spec: ModelSpec, costs: HeadCosts) -> None:
        super().__init__(spec, costs)
        self.bias = nn.Parameter(torch.empty(detector_sizes(spec).features))

    def loss(self, x_SBD: Tensor, batch: dict[str, Tensor], tied: Tensor | None) -> Loss:
        labels_BAF = batch[self.label_field]
        error_BAF = self._features(self._read_targets(x_SBD, batch), tied).float() - labels_BAF.float()
        return torch.where(labels_BAF != IGNORED, error_BAF.square(), 0).sum(), count_labels(labels_BAF)

    def logits(self, x_SBD: Tensor, tied: Tensor | None) -> Tensor:
        """Return the predicted region features at every position, [B, S, F]."""
        return self._features(self._read(x_SBD.transpose(0, 1)), tied)

    def _features(self, x: Tensor, tied: Tensor | None) -> Tensor:
        assert tied is not None
        return F.linear(x, tied.t(), self.bias)


class _RegionClasses(_HiddenRegions):
    """Base class of UNITER's heads with logits of detector classes."""

    def __init__(self, spec: ModelSpec, costs: HeadCosts) -> None:
        super().__init__(spec, costs)
        self.classify = Linear.from_shape(costs.linears["classify"])

    def logits(self, x_SBD: Tensor, tied: Tensor | None) -> Tensor:
        """Return the logits of detector classes at every position, [B, S, C]."""
        return self.classify(self._read(x_SBD.transpose(0, 1)))

    def _class_logits(self, x_SBD: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """Return the logits of detector classes at target positions, [B, A, C]."""
        scores: Tensor = self.classify(self._read_targets(x_SBD, batch))
        return scores


class RegionLabelHead(_RegionClasses):
    """UNITER's head MRC: cross-entropy of masked regions with the detector's most likely class."""

    def loss(self, x_SBD: Tensor, batch: dict[str, Tensor], tied: Tensor | None) -> Loss:
        return class_loss(self._class_logits(x_SBD, batch), batch[self.label_field])


class RegionDistributionHead(_RegionClasses):
    """UNITER's head MRC-kl: KL divergence to the detector's class distribution. Each class is a label: the loss is a
    mean over regions and classes, as in the released code."""

    def loss(self, x_SBD: Tensor, batch: dict[str, Tensor], tied: Tensor | None) -> Loss:
        labels_BAC = batch[self.label_field]
        valid_BAC = labels_BAC != IGNORED
        log_probabilities_BAC = self._class_logits(x_SBD, batch).float().log_softmax(-1)
        divergence_BAC = F.kl_div(
            log_probabilities_BAC, torch.where(valid_BAC, labels_BAC, 0).float(), reduction="none"
        )
        return torch.where(valid_BAC, divergence_BAC, 0).sum(), count_labels(labels_BAC)


class WordRegionHead(nn.Module):
    """UNITER's head WRA: optimal transport distance of words and regions, minimized for matching pairs and maximized
    for others (released code)."""

    def __init__(self, spec: ModelSpec, costs: HeadCosts) -> None:
        super().__init__()
        self.label_field = costs.label_field

    def loss(self, x_SBD: Tensor, batch: dict[str, Tensor], tied: Tensor | None) -> Loss:
        matched_B = batch[self.label_field]
        distances_B = self.distances(x_SBD, batch)
        signed_B = torch.where(matched_B == 1, distances_B, -distances_B)
        return torch.where(matched_B != IGNORED, signed_B, 0).sum(), count_labels(matched_B)

    def distances(self, x_SBD: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """Return the optimal transport distance of words and regions of each sample, padding excluded, [B]."""
        x_BSD = x_SBD.transpose(0, 1)
        regions = batch["region_features"].shape[1]
        lengths = [x_BSD.shape[1] - regions, regions]
        documents_BS = batch.get("document_ids", torch.ones_like(x_BSD[:, :, 0]))
        return transport_distance(*x_BSD.split(lengths, 1), *(documents_BS > 0).split(lengths, 1))

    def logits(self, x_SBD: Tensor, tied: Tensor | None) -> Tensor:
        """Return the transport cost between any two positions of text and regions, [B, S, S]."""
        x_BSD = x_SBD.transpose(0, 1).float()
        return cosine_costs(x_BSD, x_BSD)
