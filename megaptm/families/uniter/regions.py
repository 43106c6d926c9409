"""Embedding of image regions after a text (UNITER, UNIMO)."""

# R regions of a row, B batch, F features, D width

from __future__ import annotations

import torch
from torch import Tensor, nn

from megaptm.errors import UserError
from megaptm.families.uniter.costs import RegionCosts
from megaptm.families.uniter.spec import MASKED_REGION, NUM_BOX_VALUES, RegionInput
from megaptm.layers.norm import Norm
from megaptm.layers.split import Embedding, Linear
from megaptm.spec import ModelSpec


class ImageRegions(nn.Module):
    """Embedding of image regions: the normalized sum of projected detector features, projected box (each with an
    optional norm) and segment (arXiv:1909.11740, section 3.1, and the released code). Features of masked regions are
    replaced by a learned vector or zeros. Regions have no order."""

    mask: Embedding | None

    def __init__(self, spec: ModelSpec, record: RegionInput) -> None:
        super().__init__()
        _check_model(spec, record)
        costs = RegionCosts(spec, record)
        features, box, *mask = costs.linears
        block = spec.family.first_block

        def norm() -> Norm:
            return Norm(features.outputs, block.norm)

        each = costs.num_norms > 1
        self.project, self.project_norm = Linear.from_shape(features), norm() if each else None
        self.box, self.box_norm = Linear.from_shape(box), norm() if each else None
        self.mask = Embedding(mask[0].outputs, mask[0].inputs) if mask else None
        self.norm = norm()
        self.all_numbers = box.inputs == NUM_BOX_VALUES

    def forward(self, features_BRF: Tensor, boxes_BR7: Tensor, kinds_RB: Tensor, segments_RBD: Tensor | None) -> Tensor:
        """Return the embedding of image regions, [R, B, D]. `kinds_RB`: which regions are masked."""
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


def _check_model(spec: ModelSpec, record: RegionInput) -> None:
    family = spec.family
    has_segments = family.segments > 0
    errors = {
        "several stacks": len(family.stacks) > 1,
        "inputs that replace tokens (inputs)": not family.reads_tokens(next(iter(family.stacks))),
        "less than two segments (inputs)": family.segments < 2 and (has_segments or record.norms == "each"),
        "positions other than learned (position)": family.first_block.position != "learned",
        "tables not as wide as the stream (model.embedding)": spec.size.table_width != spec.size.width,
        "queries beside the text": family.has_queries,
    }
    if named := [word for word, is_so in errors.items() if is_so]:
        raise UserError(
            f"{spec.name} reads regions of images, which cannot be combined with {named[0]}: change either."
        )
