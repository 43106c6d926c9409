"""Change of the image resolution of a model by interpolation of its position embeddings."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from megaptm.errors import UserError
from megaptm.families.vit.spec import patches_per_side
from megaptm.hub.imported_weights import ImportedModel

POSITIONS = "embed.position.weight"


def resize_position_table(model: ImportedModel, context: int) -> ImportedModel:
    """Change the resolution of an image model: return it with `context` positions, the class token and a square of
    patches. Position embeddings of patches are interpolated bicubically in two dimensions (ViT, arXiv:2010.11929,
    section 3.2); other weights do not change."""
    spec = replace(model.spec, context=context)
    if context < 2 or patches_per_side(spec) ** 2 + 1 != context:
        raise UserError(
            f"model.context ({context}) must be a square number of patches plus 1 for the class token: "
            f"{max(patches_per_side(spec), 1) ** 2 + 1} or {(patches_per_side(spec) + 1) ** 2 + 1}."
        )
    weights = dict(model.weights)
    if context != model.spec.context:
        weights[POSITIONS] = interpolate_positions(
            weights[POSITIONS], before=patches_per_side(model.spec), after=patches_per_side(spec)
        )
    return replace(model, spec=spec, weights=weights)


def interpolate_positions(rows_SD: Tensor, *, before: int, after: int) -> Tensor:
    """Interpolate a table of patch positions: return [1 + after x after, D] from [1 + before x before, D], with the
    class token's row unchanged."""
    grid_1DHW = rows_SD[1:].float().t().reshape(1, -1, before, before)
    larger_1DHW = F.interpolate(grid_1DHW, (after, after), mode="bicubic", align_corners=False)
    rows_ND = larger_1DHW.flatten(2)[0].t().to(rows_SD.dtype)
    return torch.cat([rows_SD[:1], rows_ND])
