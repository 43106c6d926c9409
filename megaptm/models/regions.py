"""Embedding of image regions after a text (UNITER, UNIMO)."""

# R regions of a row, B batch, F features, D width

from __future__ import annotations

import torch
from torch import Tensor, nn

from megaptm.batch import MASKED_REGION, NUM_BOX_VALUES
from megaptm.bricks.regions import feature_map, region_maps, region_norms
from megaptm.layers.norm import Norm
from megaptm.layers.split import Embedding, Linear
from megaptm.spec import ModelSpec

REGION_FIELDS = ("region_features", "region_boxes")
ROW_FIELDS = ("tokens", "segments", "positions")
"""Batch fields of all positions, text and regions, that the input reads."""


class ImageRegions(nn.Module):
    """Region embedding: projections of detector features and box, each with an optional norm; their sum, plus segment,
    is normalized (arXiv:1909.11740, section 3.1, and the released code). Features of masked regions are replaced by a
    learned vector or zeros. Regions have no order."""

    mask: Embedding | None

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        features, box, *mask = region_maps(spec)
        block = spec.family.first_block

        def norm() -> Norm:
            return Norm(features.outputs, block.norm)

        each = region_norms(spec) > 1
        self.project, self.project_norm = Linear.of(features), norm() if each else None
        self.box, self.box_norm = Linear.of(box), norm() if each else None
        self.mask = Embedding(mask[0].outputs, mask[0].inputs) if mask else None
        self.norm = norm()
        self.all_numbers = box.inputs == NUM_BOX_VALUES

    def forward(self, features_BRF: Tensor, boxes_BR7: Tensor, kinds_RB: Tensor, segments_RBD: Tensor | None) -> Tensor:
        """Return [R, B, D]. `kinds_RB`: which regions are masked."""
        dtype = self.project.weight.dtype
        features, boxes = features_BRF.transpose(0, 1).to(dtype), boxes_BR7.transpose(0, 1).to(dtype)
        hidden_RB = kinds_RB == MASKED_REGION
        instead = features.new_zeros(()) if self.mask is None else self.mask(hidden_RB.long())
        x = self.project(torch.where(hidden_RB[:, :, None], instead, features))
        if not self.all_numbers:  # width and height follow from the corners
            boxes = torch.cat([boxes[:, :, :4], boxes[:, :, 6:]], -1)
        box = self.box(boxes)
        if self.project_norm is not None and self.box_norm is not None:
            x, box = self.project_norm(x), self.box_norm(box)
        x = x + box
        return self.norm(x if segments_RBD is None else x + segments_RBD)


class RegionTable(nn.Module):
    """Weight of the feature projection alone, for a chunk that only transposes it."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        map_ = feature_map(spec)
        self.project = Linear(map_.inputs, map_.outputs, bias=False)


def apart(batch: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Split batch fields into those of text positions and of region positions."""
    if "region_features" not in batch:
        return batch, {}
    regions = batch["region_features"].shape[1]
    row = {name: batch[name] for name in ROW_FIELDS if name in batch}
    text = {name: field[:, : field.shape[1] - regions] for name, field in row.items()}
    behind = {name: field[:, field.shape[1] - regions :] for name, field in row.items()}
    return batch | text, behind | {name: batch[name] for name in REGION_FIELDS}
