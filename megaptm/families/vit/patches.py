"""Patch embedding of images (ViT)."""

# S sequence, B batch, N patches, C channels, P pixels of a patch, D width

from __future__ import annotations

import torch
from torch import Tensor, nn

from megaptm.families.vit.costs import PatchCosts
from megaptm.families.vit.spec import CHANNELS, MASKED_PATCH, PatchInput
from megaptm.layers.split import Embedding, Linear
from megaptm.spec import ModelSpec


class ImagePatches(nn.Module):
    """Linear projection of patches after a class token (arXiv:2010.11929, equation 1). Masked patches are replaced by a
    learned vector, if the model predicts masked patches."""

    def __init__(self, spec: ModelSpec, record: PatchInput) -> None:
        super().__init__()
        costs = PatchCosts(spec, record)
        self.project = Linear.from_shape(costs.project)
        self.image = Embedding(1, costs.project.outputs)
        self.mask = Embedding(1, costs.project.outputs) if costs.has_mask else None
        self.scales = [1 / (255 * std) for std in record.std]
        self.shifts = [-mean / std for mean, std in zip(record.mean, record.std, strict=True)]

    def forward(self, patches_BNP: Tensor, kinds_SB: Tensor) -> Tensor:
        """Return the patch embeddings [S, B, D] from uint8 patches [B, N, C P] and the kind of each position."""
        x = self.project(self._normalize_pixels(patches_BNP)).transpose(0, 1)
        if self.mask is not None:
            hidden_NB = kinds_SB[1:] == MASKED_PATCH
            x = torch.where(hidden_NB[:, :, None], self.mask(torch.zeros_like(kinds_SB[1:])), x)
        return torch.cat([self.image(torch.zeros_like(kinds_SB[:1])), x])

    def _normalize_pixels(self, patches_BNP: Tensor) -> Tensor:
        # Python floats one by one: a tensor of three would be a copy to the device that synchronizes.
        channels = patches_BNP.unflatten(-1, (CHANNELS, -1)).float().unbind(-2)
        scaled = [
            statistic * scale + shift
            for statistic, scale, shift in zip(channels, self.scales, self.shifts, strict=True)
        ]
        return torch.cat(scaled, -1).to(self.project.weight.dtype)
